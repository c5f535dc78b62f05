package api

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// guide is the document for people.
func guide(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "docs", "api.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var (
	curlCommand = regexp.MustCompile(`(?m)^curl (?:-N )?http://127\.0\.0\.1:8080(\S+)(.*)$`)
	curlData    = regexp.MustCompile(` -d '([^']*)'`)
)

// Every command of the document is answered with success.
func TestDocumentedCommands(t *testing.T) {
	mod, _ := testModel(t, script{text: "</think>ok"})
	_, url := serve(t, mod, nil)
	commands := curlCommand.FindAllStringSubmatch(guide(t), -1)
	if len(commands) < 7 {
		t.Fatalf("%d commands", len(commands))
	}
	for _, c := range commands {
		method, body := "GET", ""
		if data := curlData.FindStringSubmatch(c[2]); data != nil {
			method, body = "POST", data[1]
		}
		if resp, answer := send(t, method, url+c[1], body); resp.StatusCode != 200 {
			t.Errorf("%s: status %d, %s", c[0], resp.StatusCode, answer)
		}
	}
}

// The document names every route, every field of a request, every metric and
// every code of an error.
func TestGuideIsComplete(t *testing.T) {
	text := guide(t)
	named := func(kind, name string) {
		if !strings.Contains(text, "`"+name) && !strings.Contains(text, " "+name+"`") && !strings.Contains(text, "\""+name+"\"") && !strings.Contains(text, "."+name+"`") {
			t.Errorf("the %s %s is not in docs/api.md", kind, name)
		}
	}
	d := describe(t, false)
	for path := range d.document["paths"].(m) {
		named("route", path)
	}
	for _, schema := range []string{"ChatRequest", "TextRequest", "TokenizeRequest", "DetokenizeRequest"} {
		for name := range d.document["components"].(m)["schemas"].(m)[schema].(m)["properties"].(m) {
			named("field", name)
		}
	}
	for _, list := range [][]limited{constraints, unsupportedInChat, unsupportedInText} {
		for _, l := range list {
			named("field", l.name)
		}
	}
	mod, _ := testModel(t)
	mod.Parts = fakeParts{}
	_, url := serve(t, mod, nil)
	_, page := send(t, "GET", url+"/metrics", "")
	for line := range strings.Lines(page) {
		if f := strings.Fields(line); len(f) > 2 && f[1] == "TYPE" && strings.HasPrefix(f[2], "strata_") {
			named("metric", f[2])
		}
	}
	var codes []string
	quoted := regexp.MustCompile(`(?:refuse|invalidRequest|unavailable)\([^"\n]*(?:"[^"]*", )?"([a-z_]+)",`)
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, match := range quoted.FindAllStringSubmatch(string(b), -1) {
			codes = append(codes, match[1])
		}
	}
	slices.Sort(codes)
	codes = slices.Compact(codes)
	if len(codes) < 15 {
		t.Errorf("codes %q", codes)
	}
	for _, code := range codes {
		named("code", code)
	}
	var example struct{ Error errorBody }
	if _, rest, ok := strings.Cut(text, "## Errors\n\n```\n"); !ok {
		t.Error("no example of an error")
	} else if err := json.Unmarshal([]byte(rest[:strings.IndexByte(rest, '\n')]), &example); err != nil {
		t.Error(err)
	}
}
