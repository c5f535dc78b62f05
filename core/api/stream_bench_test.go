package api

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strata-engine/strata/core/config"
	"github.com/strata-engine/strata/core/engine"
)

// steadyEngine gives every request an endless answer, a token every pace.
type steadyEngine struct{ pace time.Duration }

func (e steadyEngine) Start(ctx context.Context, req engine.Request) (Generation, error) {
	return &steadyGeneration{ticker: time.NewTicker(e.pace), prompt: len(req.Prompt)}, nil
}
func (e steadyEngine) Down() error          { return nil }
func (e steadyEngine) Stats() engine.Totals { return engine.Totals{} }

type steadyGeneration struct {
	ticker *time.Ticker
	prompt int
	made   atomic.Int64
}

func (g *steadyGeneration) Next(ctx context.Context) (engine.Token, error) {
	select {
	case <-g.ticker.C:
		return engine.Token{ID: int32(40 + g.made.Add(1)%20)}, nil
	case <-ctx.Done():
		return engine.Token{}, ctx.Err()
	}
}
func (g *steadyGeneration) Finish() string { return "" }
func (g *steadyGeneration) Close()         { g.ticker.Stop() }
func (g *steadyGeneration) Stats() engine.Stats {
	return engine.Stats{Prompt: g.prompt, Generated: int(g.made.Load())}
}
func (g *steadyGeneration) Progress() engine.Progress {
	return engine.Progress{Phase: engine.PhaseDecode, Prompt: g.prompt, Read: g.prompt}
}

// BenchmarkStream measures what one event of a stream costs on its way from the
// engine to a client of this process.
func BenchmarkStream(b *testing.B) {
	mod, _ := testModel(b)
	mod.Engine = steadyEngine{time.Nanosecond}
	_, url := serve(b, mod, func(c *config.Server) { c.HoldHeaders = 0 })
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", strings.NewReader(`{`+hello+`,"stream":true}`))
	if err != nil {
		b.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	b.ReportAllocs()
	for b.Loop() {
		for lines.Scan() && !strings.HasPrefix(lines.Text(), "data: ") {
		}
	}
}
