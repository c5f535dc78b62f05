package template

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ardanlabs/jinja"
)

// Limits of one rendering. Real templates stay far below: a conversation of 200
// messages takes a few thousand steps.
const (
	maxSource   = 1 << 20 // bytes of template source
	maxSteps    = 2_000_000
	maxCalls    = 500 // macros within macros
	maxRange    = 100_000
	maxDuration = 10 * time.Second
)

// Error is a failure that the template itself reports or causes.
type Error struct {
	// Message is the template's own message where it called raise_exception,
	// else what went wrong in it.
	Message string
	// Raised says that the template refused the conversation on purpose.
	Raised bool
}

// Error returns the message with what was being done.
func (e *Error) Error() string { return "render the chat template: " + e.Message }

// run is one rendering: its limits and the functions the template may call.
type run struct {
	ctx    context.Context
	until  time.Time
	now    time.Time
	steps  int
	calls  int
	raised *Error
}

// functions adds what a template can call to its variables.
func (r *run) functions(vars map[string]jinja.Value) {
	for name, fn := range map[string]func([]jinja.Value, map[string]jinja.Value) (jinja.Value, error){
		stepName:          r.step,
		enterName:         r.enter,
		leaveName:         r.leave,
		tojsonName:        tojson,
		stringName:        toString,
		"range":           r.rangeOf,
		"raise_exception": r.raise,
		"strftime_now":    r.strftime,
	} {
		vars[name] = jinja.NewCallable(name, fn)
	}
}

// step counts an iteration of a loop.
func (r *run) step([]jinja.Value, map[string]jinja.Value) (jinja.Value, error) {
	return jinja.NewBool(false), r.count(1)
}

func (r *run) count(n int) error {
	before := r.steps
	r.steps += n
	if r.steps > maxSteps {
		return fmt.Errorf("stopped after %d steps: the template loops too long", maxSteps)
	}
	if before>>8 == r.steps>>8 {
		return nil // looking at the clock costs more than a step
	}
	if err := r.ctx.Err(); err != nil {
		return err
	}
	if time.Now().After(r.until) {
		return fmt.Errorf("stopped after %v: the template loops too long", maxDuration)
	}
	return nil
}

// enter and leave count macros that are being executed.
func (r *run) enter([]jinja.Value, map[string]jinja.Value) (jinja.Value, error) {
	if r.calls++; r.calls > maxCalls {
		return jinja.Undefined(), fmt.Errorf("macros call each other more than %d deep", maxCalls)
	}
	return jinja.NewBool(false), r.count(1)
}

func (r *run) leave([]jinja.Value, map[string]jinja.Value) (jinja.Value, error) {
	r.calls--
	return jinja.NewBool(false), nil
}

// raise is raise_exception.
func (r *run) raise(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	r.raised = &Error{Message: "the template refused the conversation", Raised: true}
	if len(args) > 0 && args[0].IsString() {
		r.raised.Message = args[0].AsString()
	}
	return jinja.Undefined(), r.raised
}

// rangeOf is range with a bound.
func (r *run) rangeOf(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	bounds := []int64{0, 0, 1}
	if len(args) == 0 || len(args) > 3 {
		return jinja.Undefined(), fmt.Errorf("range: expected 1 to 3 arguments, got %d", len(args))
	}
	for i, a := range args {
		switch {
		case a.IsInt():
			bounds[i] = a.AsInt()
		case a.IsFloat():
			bounds[i] = int64(a.AsFloat())
		default:
			return jinja.Undefined(), errors.New("range: arguments must be integers")
		}
	}
	if len(args) == 1 {
		bounds[0], bounds[1] = 0, bounds[0]
	}
	start, stop, step := bounds[0], bounds[1], bounds[2]
	if step == 0 {
		return jinja.Undefined(), errors.New("range: step must not be zero")
	}
	var items []jinja.Value
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if len(items) == maxRange {
			return jinja.Undefined(), fmt.Errorf("range: more than %d items", maxRange)
		}
		items = append(items, jinja.NewInt(i))
	}
	return jinja.NewList(items), r.count(len(items))
}

// strftime is strftime_now; its time stays the same during a rendering.
func (r *run) strftime(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	if len(args) != 1 || !args[0].IsString() {
		return jinja.Undefined(), errors.New("strftime_now: expected a format")
	}
	return jinja.NewString(strftime(r.now, args[0].AsString())), nil
}

// strftime formats a time with the codes that chat templates use; others stay.
func strftime(t time.Time, format string) string {
	layouts := map[byte]string{
		'Y': "2006", 'y': "06", 'm': "01", 'd': "02", 'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM", 'j': "002",
		'B': "January", 'b': "Jan", 'h': "Jan", 'A': "Monday", 'a': "Mon", 'Z': "MST", 'z': "-0700",
		'F': "2006-01-02", 'T': "15:04:05", 'R': "15:04", 'D': "01/02/06", 'e': "_2", 'f': "000000",
	}
	var out []byte
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			out = append(out, format[i])
			continue
		}
		i++
		layout, ok := layouts[format[i]]
		switch {
		case format[i] == '%':
			out = append(out, '%')
		case format[i] == '-' && i+1 < len(format) && layouts[format[i+1]] != "":
			i++ // without leading zeros
			s := t.Format(layouts[format[i]])
			for len(s) > 1 && s[0] == '0' {
				s = s[1:]
			}
			out = append(out, s...)
		case ok:
			out = t.AppendFormat(out, layout)
		default:
			out = append(out, '%', format[i])
		}
	}
	return string(out)
}
