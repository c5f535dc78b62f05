package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"reflect"
	"strconv"
	"strings"

	"github.com/go-playground/validator/v10"

	"github.com/strata-engine/strata/core/plan"
)

// newValidator returns a validator that names fields by their keys.
func newValidator() *validator.Validate {
	v := validator.New(validator.WithRequiredStructEnabled())
	v.RegisterTagNameFunc(func(f reflect.StructField) string { return f.Tag.Get("koanf") })
	rules := map[string]func(s string) bool{
		"listen": func(s string) bool { return checkListen(s) == nil },
		"apikey": validKey,
		"layers": func(s string) bool { _, err := plan.ParseRange(s); return err == nil },
		"origin": func(s string) bool {
			u, err := url.Parse(s)
			return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" &&
				u.Path == "" && u.RawQuery == "" && u.Fragment == "" && u.User == nil
		},
	}
	for tag, rule := range rules {
		// The only errors are an empty tag and a reserved one.
		if err := v.RegisterValidation(tag, func(fl validator.FieldLevel) bool { return rule(fl.Field().String()) }); err != nil {
			panic(err)
		}
	}
	return v
}

// checkListen checks HOST:PORT. An empty host means every address.
func checkListen(s string) error {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return err
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err
}

// validate checks the merged configuration. Keys in the result are plain.
func validate(c *Config, backends func(dir string) ([]string, error)) []Problem {
	var problems []Problem
	var invalid validator.ValidationErrors
	if err := newValidator().Struct(c); errors.As(err, &invalid) {
		for _, e := range invalid {
			problems = append(problems, describe(e))
		}
	} else if err != nil {
		// Only a value that is no struct gets here.
		panic(err)
	}
	if _, err := c.Server.Keys(); err != nil {
		problems = append(problems, Problem{Key: "server.api_keys_file", Message: err.Error(), Try: "write one key a line into the file, or take the setting out"})
	}
	if backends != nil {
		problems = append(problems, checkBackends(c, backends)...)
	}
	return problems
}

// checkBackends checks that every device names a backend that is there.
func checkBackends(c *Config, list func(dir string) ([]string, error)) []Problem {
	there, err := list(c.Plugins.Dir)
	if err != nil {
		return []Problem{{Key: "plugins.dir", Message: err.Error(), Try: "name the folder that holds the strata-backend-... programs"}}
	}
	known := make(map[string]bool, len(there))
	for _, name := range there {
		known[name] = true
	}
	var problems []Problem
	for i, d := range c.Devices {
		if known[d.Backend] || d.Backend == "" {
			continue
		}
		p := Problem{Key: fmt.Sprintf("devices[%d].backend", i)}
		if len(there) == 0 {
			p.Message = fmt.Sprintf("the program strata-backend-%s is missing: there are no backends in %s", d.Backend, c.Plugins.Dir)
			p.Try = "make build, or name the folder with plugins.dir"
		} else {
			p.Message = fmt.Sprintf("must be one of %s (got %q)", strings.Join(there, ", "), d.Backend)
			p.Try = there[0]
			if near := nearest(d.Backend, there); near != "" {
				p.Try = near
			}
		}
		problems = append(problems, p)
	}
	return problems
}

// describe turns a failed rule into a message with a remedy.
func describe(e validator.FieldError) Problem {
	_, key, _ := strings.Cut(e.Namespace(), ".")
	p := Problem{Key: key}
	value := got(key, e.Value())
	switch e.Tag() {
	case "required":
		p.Message = "must not be empty"
	case "required_with":
		p.Message, p.Try = "is missing", "give the certificate and its private key, or neither"
	case "apikey":
		p.Message = "is no key: " + keyRule
	case "oneof":
		choices := strings.Fields(e.Param())
		p.Message = "must be one of " + strings.Join(choices, ", ") + " " + value
		if s, ok := e.Value().(string); ok {
			p.Try = nearest(s, choices)
		}
	case "min", "max":
		bound := e.Param()
		if e.Type() == bytesType {
			if n, err := strconv.ParseInt(bound, 10, 64); err == nil {
				bound = Bytes(n).String()
			}
		}
		word := map[string]string{"min": "at least", "max": "at most"}[e.Tag()]
		switch e.Kind() {
		case reflect.Slice:
			p.Message = fmt.Sprintf("must have %s %s entries (got %d)", word, bound, reflect.ValueOf(e.Value()).Len())
			if e.Tag() == "min" {
				p.Try = example(e.Type())
			}
		case reflect.String:
			p.Message = fmt.Sprintf("must have %s %s characters %s", word, bound, value)
		default:
			p.Message = fmt.Sprintf("must be %s %s %s", word, bound, value)
		}
	case "listen":
		p.Message, p.Try = "must be HOST:PORT "+value, "127.0.0.1:8080"
	case "layers":
		p.Message, p.Try = "must be a first and a last layer, both included "+value, "0-23"
	case "origin":
		p.Message, p.Try = "must be an origin, scheme and host without a path "+value, "https://chat.example.org"
	default:
		p.Message = fmt.Sprintf("breaks the rule %q %s", e.Tag(), value)
	}
	return p
}
