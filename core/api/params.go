package api

import (
	"fmt"
	"math"
	"strconv"
)

// params reads the members of a JSON object by name and type. The first mistake
// is kept in err and makes the further reads worthless but harmless, so that a
// reader checks once. Members that are absent or null read as the default;
// members that nobody reads are ignored.
type params struct {
	object *node
	path   string // of the object, "" for the request
	err    *apiError
}

func (p *params) fail(e *apiError) {
	if p.err == nil {
		p.err = e
	}
}

// adopt takes over the mistake of a reader of one of the members.
func (p *params) adopt(inner *params) {
	if inner.err != nil {
		p.fail(inner.err)
	}
}

// name is a member's name from the request's root.
func (p *params) name(member string) string {
	if p.path == "" {
		return member
	}
	return p.path + "." + member
}

// get returns a member that is there and not null.
func (p *params) get(member string) *node {
	n := p.object.member(member)
	if n == nil || n.kind == kindNull {
		return nil
	}
	return n
}

// want returns the member where it has the wanted type.
func (p *params) want(member string, k kind) *node {
	n := p.get(member)
	if n == nil {
		return nil
	}
	if n.kind != k {
		p.fail(wrongType(p.name(member), string(k), n))
		return nil
	}
	return n
}

func wrongType(param, want string, got *node) *apiError {
	return refuse(param, "invalid_type", "Invalid type for '%s': expected %s, but got %s instead.", param, want, got.kind)
}

func (p *params) text(member, def string) string {
	if n := p.want(member, kindString); n != nil {
		return n.text
	}
	return def
}

func (p *params) boolean(member string, def bool) bool {
	if n := p.want(member, kindBool); n != nil {
		return n.text == "true"
	}
	return def
}

// optionalBoolean is nil where nothing is said.
func (p *params) optionalBoolean(member string) *bool {
	if n := p.want(member, kindBool); n != nil {
		v := n.text == "true"
		return &v
	}
	return nil
}

func (p *params) number(member string, least, most, def float64) float64 {
	n := p.want(member, kindNumber)
	if n == nil {
		return def
	}
	v, err := strconv.ParseFloat(n.text, 64)
	if err != nil || v < least || v > most {
		p.fail(outOfRange(p.name(member), "a number", least, most, n))
	}
	return v
}

func (p *params) whole(member string, least, most, def int64) int64 {
	n := p.want(member, kindNumber)
	if n == nil {
		return def
	}
	v, err := strconv.ParseInt(n.text, 10, 64)
	if err != nil {
		// 1.0 and 1e3 are whole numbers too.
		f, ferr := strconv.ParseFloat(n.text, 64)
		if ferr != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
			p.fail(outOfRange(p.name(member), "a whole number", float64(least), float64(most), n))
			return def
		}
		v = int64(f)
	}
	if v < least || v > most {
		p.fail(outOfRange(p.name(member), "a whole number", float64(least), float64(most), n))
	}
	return v
}

func outOfRange(param, what string, least, most float64, got *node) *apiError {
	bounds := fmt.Sprintf("from %v to %v", least, most)
	if most >= math.MaxInt32 {
		bounds = fmt.Sprintf("of at least %v", least)
	}
	if least <= -math.MaxInt32 {
		bounds = "within 64 bits"
	}
	return refuse(param, "invalid_value", "Invalid value for '%s': expected %s %s, but got %s instead.", param, what, bounds, got.text)
}
