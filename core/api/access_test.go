package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/strata-engine/strata/core/config"
)

// send sends a request with headers, given as name, value, ..., and returns the
// response with its body read.
func send(t testing.TB, method, url, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if req.Header.Set(headers[i], headers[i+1]); headers[i] == "Host" {
			req.Host = headers[i+1]
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

func TestKeys(t *testing.T) {
	mod, _ := testModel(t, script{text: "</think>ok"})
	mod.Parts = fakeParts{}
	_, url := serve(t, mod, func(c *config.Server) { c.APIKeys = []string{"first-key", "second"} })
	tests := []struct {
		headers []string
		allowed bool
	}{
		{[]string{"Authorization", "Bearer first-key"}, true},
		{[]string{"Authorization", "bearer  second "}, true},
		{[]string{"X-Api-Key", "second"}, true},
		{[]string{"Authorization", "Bearer wrong", "X-Api-Key", "first-key"}, true},
		{nil, false},
		{[]string{"Authorization", "Bearer "}, false},
		{[]string{"Authorization", "Bearer firs"}, false},
		{[]string{"Authorization", "Bearer first-keys"}, false},
		{[]string{"Authorization", "Bearer FIRST-KEY"}, false},
		{[]string{"Authorization", "Bearer first-key,second"}, false},
		{[]string{"Authorization", "first-key"}, false},
		{[]string{"Authorization", "Basic first-key"}, false},
		{[]string{"X-Api-Key", ""}, false},
		{[]string{"Api-Key", "second"}, false},
	}
	for _, tt := range tests {
		for _, route := range []struct{ method, path, body string }{
			{"POST", "/v1/chat/completions", `{` + hello + `}`}, {"GET", "/v1/models", ""}, {"GET", "/metrics", ""}, {"GET", "/props", ""}, {"GET", "/nowhere", ""},
		} {
			resp, body := send(t, route.method, url+route.path, route.body, tt.headers...)
			want := map[bool]int{true: 200, false: 401}[tt.allowed]
			if tt.allowed && route.path == "/nowhere" {
				want = 404
			}
			if resp.StatusCode != want {
				t.Errorf("%s with %q: status %d, want %d: %s", route.path, tt.headers, resp.StatusCode, want, body)
			}
			if want == 401 {
				e := decode(t, strings.NewReader(body))["error"].(m)
				if e["type"] != "authentication_error" || e["code"] != "invalid_api_key" || resp.Header.Get("WWW-Authenticate") != "Bearer" || strings.Contains(body, "first") {
					t.Errorf("%q: %s", tt.headers, body)
				}
			}
		}
	}
	// Health needs none, and shows the devices only with one.
	for _, path := range []string{"/health", "/health/live", "/health/ready"} {
		if resp, body := send(t, "GET", url+path, ""); resp.StatusCode != 200 || strings.Contains(body, "cpu0") {
			t.Errorf("%s: status %d, %s", path, resp.StatusCode, body)
		}
	}
	if _, body := send(t, "GET", url+"/health", "", "X-Api-Key", "second"); !strings.Contains(body, "cpu0") {
		t.Errorf("health with a key: %s", body)
	}
	if resp, _ := send(t, "GET", url+"/healthy", ""); resp.StatusCode != 401 {
		t.Errorf("a path that only begins like health: status %d", resp.StatusCode)
	}
	// A key takes the place of the checks of Host and Origin.
	if resp, _ := send(t, "GET", url+"/v1/models", "", "X-Api-Key", "second", "Host", "strata.example", "Origin", "https://chat.example"); resp.StatusCode != 200 {
		t.Errorf("another host with a key: status %d", resp.StatusCode)
	}
}

func TestOpenAIClientWithKeys(t *testing.T) {
	mod, _ := testModel(t, script{text: "</think>ok"})
	_, url := serve(t, mod, func(c *config.Server) { c.APIKeys = []string{"none"} })
	client := openAIClient(url) // its key is "none"
	if _, err := client.Chat.Completions.New(context.Background(), ask()); err != nil {
		t.Error(err)
	}
	wrong := openai.NewClient(option.WithBaseURL(url+"/v1"), option.WithAPIKey("wrong"), option.WithMaxRetries(0))
	_, err := wrong.Chat.Completions.New(context.Background(), ask())
	var failure *openai.Error
	if !errors.As(err, &failure) || failure.StatusCode != 401 || failure.Code != "invalid_api_key" {
		t.Errorf("error %v", err)
	}
}

func TestCORS(t *testing.T) {
	const page, stranger = "https://chat.example", "https://evil.example"
	for _, keys := range [][]string{nil, {"key"}} {
		mod, _ := testModel(t, script{text: "</think>ok"})
		_, url := serve(t, mod, func(c *config.Server) { c.CORSOrigins, c.APIKeys = []string{page}, keys })
		tests := []struct {
			name, method, path, body string
			headers                  []string
			status                   int
			want                     map[string]string // of the headers that matter; absent means none
		}{
			{"answer", "POST", "/v1/chat/completions", `{` + hello + `}`, []string{"Origin", page, "X-Api-Key", "key"}, 200, nil},
			{"stream", "POST", "/v1/chat/completions", `{` + hello + `,"stream":true}`, []string{"Origin", page, "X-Api-Key", "key"}, 200, nil},
			{"refusal", "POST", "/v1/chat/completions", `{}`, []string{"Origin", page, "X-Api-Key", "key"}, 400, nil},
			{"unknown path", "GET", "/nowhere", "", []string{"Origin", page, "X-Api-Key", "key"}, 404, nil},
			{"preflight", "OPTIONS", "/v1/chat/completions", "", []string{"Origin", page, "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization, X-Stainless-OS,x_y,b@d, ,x-api-key", "Access-Control-Request-Private-Network", "true"}, 204, map[string]string{
				"Access-Control-Allow-Methods": "GET, POST, OPTIONS", "Access-Control-Allow-Headers": "authorization, content-type, x-api-key, x-stainless-os, x_y",
				"Access-Control-Max-Age": "600", "Access-Control-Allow-Private-Network": "true",
			}},
			{"preflight of one route", "OPTIONS", "/v1/models", "", []string{"Origin", page, "Access-Control-Request-Method", "GET"}, 204, map[string]string{
				"Access-Control-Allow-Methods": "GET, POST, OPTIONS", "Access-Control-Allow-Headers": "authorization, content-type, x-api-key", "Access-Control-Max-Age": "600",
			}},
		}
		for _, tt := range tests {
			resp, body := send(t, tt.method, url+tt.path, tt.body, tt.headers...)
			got := corsHeaders(resp)
			want := map[string]string{"Access-Control-Allow-Origin": page, "Access-Control-Expose-Headers": "Retry-After", "Vary": "Origin"}
			for name, value := range tt.want {
				want[name] = value
			}
			if d := cmp.Diff(want, got); d != "" || resp.StatusCode != tt.status {
				t.Errorf("%s with keys %q: status %d, want %d, %s\n%s", tt.name, keys, resp.StatusCode, tt.status, d, body)
			}
		}
		// Without a key, the page can read that one is missing.
		if keys != nil {
			resp, _ := send(t, "POST", url+"/v1/chat/completions", `{`+hello+`}`, "Origin", page)
			if resp.StatusCode != 401 || resp.Header.Get("Access-Control-Allow-Origin") != page {
				t.Errorf("no key: status %d, %v", resp.StatusCode, corsHeaders(resp))
			}
		}
		// Nobody else is told anything.
		for _, origin := range []string{stranger, "null", page + ".evil.example", "http://chat.example"} {
			for _, method := range []string{"OPTIONS", "POST"} {
				resp, _ := send(t, method, url+"/v1/chat/completions", `{`+hello+`}`, "Origin", origin, "Access-Control-Request-Method", "POST")
				if d := cmp.Diff(map[string]string{"Vary": "Origin"}, corsHeaders(resp)); d != "" || resp.StatusCode == 200 {
					t.Errorf("%s from %s with keys %q: status %d, %s", method, origin, keys, resp.StatusCode, d)
				}
			}
		}
	}
	// Where no origins are listed, there are no such headers at all.
	mod, _ := testModel(t, script{text: "</think>ok"})
	_, url := serve(t, mod, nil)
	resp, _ := send(t, "GET", url+"/v1/models", "", "Origin", "http://localhost:3000")
	if d := cmp.Diff(map[string]string{}, corsHeaders(resp)); d != "" || resp.StatusCode != 200 {
		t.Errorf("status %d, %s", resp.StatusCode, d)
	}
	if resp, _ := send(t, "OPTIONS", url+"/v1/models", ""); resp.StatusCode != 204 || resp.Header.Get("Allow") != "GET, HEAD" {
		t.Errorf("OPTIONS: status %d, Allow %q", resp.StatusCode, resp.Header.Get("Allow"))
	}
}

func corsHeaders(resp *http.Response) map[string]string {
	out := map[string]string{}
	for name := range resp.Header {
		if strings.HasPrefix(name, "Access-Control-") || name == "Vary" {
			out[name] = strings.Join(resp.Header.Values(name), "|")
		}
	}
	return out
}
