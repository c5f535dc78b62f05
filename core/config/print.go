package config

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// hidden stands for the value of a secret.
const hidden = "(hidden)"

// YAML writes the whole configuration as a file that Load reads and that says
// the same, apart from secrets, which are hidden. With origin, a comment behind
// every value says which source set it.
func (l *Loaded) YAML(origin bool) ([]byte, error) {
	root := l.node(reflect.ValueOf(l.Config), "", origin)
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(root); err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	return out.Bytes(), nil
}

// node describes a value. Origins are those of whole values, because a list of a
// stronger source replaces that of a weaker one whole.
func (l *Loaded) node(v reflect.Value, key string, origin bool) *yaml.Node {
	node := &yaml.Node{}
	switch {
	case v.Kind() == reflect.Struct:
		node.Kind = yaml.MappingNode
		for i, f := range fieldsOf(v.Type()) {
			path := f.name
			if key != "" {
				path = key + "." + f.name
			}
			name := &yaml.Node{Kind: yaml.ScalarNode, Value: f.name}
			value := l.node(v.Field(i), path, origin)
			if secret(f.name) {
				hide(value)
			}
			if origin && f.typ.Kind() != reflect.Struct {
				comment(name, value, l.origin(path))
			}
			node.Content = append(node.Content, name, value)
		}
	case v.Kind() == reflect.Slice:
		node.Kind = yaml.SequenceNode
		for i := range v.Len() {
			node.Content = append(node.Content, l.node(v.Index(i), key, false))
		}
	case v.Kind() == reflect.Map:
		node.Kind = yaml.MappingNode
		names := v.MapKeys()
		slices.SortFunc(names, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, n := range names {
			value := scalar(v.MapIndex(n).String())
			if secret(n.String()) {
				hide(value)
			}
			node.Content = append(node.Content, scalar(n.String()), value)
		}
	case v.Type() == durationType:
		return scalar(short(time.Duration(v.Int())))
	case v.Type() == bytesType:
		return scalar(Bytes(v.Int()).String())
	default:
		return scalar(v.Interface())
	}
	if len(node.Content) == 0 {
		node.Style = yaml.FlowStyle // [] and {}
	}
	return node
}

// short writes a duration without the zeros at its end: 2m, not 2m0s.
func short(d time.Duration) string {
	s := d.String()
	if rest, ok := strings.CutSuffix(s, "m0s"); ok {
		s = rest + "m"
	}
	if rest, ok := strings.CutSuffix(s, "h0m"); ok {
		s = rest + "h"
	}
	return s
}

// scalar is a value in the quotes it needs.
func scalar(v any) *yaml.Node {
	var node yaml.Node
	if err := node.Encode(v); err != nil {
		panic("config: write a value: " + err.Error()) // texts, numbers and truths cannot fail
	}
	return &node
}

// comment puts a comment on the line of a key.
func comment(name, value *yaml.Node, text string) {
	if value.Kind == yaml.ScalarNode || len(value.Content) == 0 {
		value.LineComment = text
	} else {
		name.LineComment = text
	}
}

// origin says which source set a value, in the words in which it is set there.
func (l *Loaded) origin(key string) string {
	for _, layer := range slices.Backward(l.Layers) {
		if !layer.Values.Exists(key) {
			continue
		}
		switch layer.Name {
		case "environment":
			return "environment: " + variable(key)
		case "flag":
			return "flag: " + flagName(key)
		case "default":
			return "default"
		}
		return "file: " + layer.Name
	}
	return "default"
}

// secretWords are what names of secrets end with.
var secretWords = []string{"key", "keys", "token", "password", "secret"}

// secret reports whether the value of a setting or of a backend's option must
// not be shown.
func secret(name string) bool {
	words := strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return r == '_' || r == '-' || r == '.' })
	return len(words) > 0 && slices.Contains(secretWords, words[len(words)-1])
}

// hide replaces the texts of a value; an empty value is not a secret.
func hide(node *yaml.Node) {
	for _, child := range node.Content {
		hide(child)
	}
	if node.Kind == yaml.ScalarNode && node.Value != "" {
		*node = *scalar(hidden)
	}
}
