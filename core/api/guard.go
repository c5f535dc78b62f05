package api

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/strata-engine/strata/core/config"
)

// guard refuses requests that a web page of somebody else may have caused, where
// no key keeps such pages out: anything that a browser on this machine can be made
// to send must be recognised, a page that reaches the server by a name it
// controls (DNS rebinding) by its Host, a page of another site by its Origin.
type guard struct {
	hosts   map[string]bool
	origins map[string]bool
	next    http.Handler
}

func newGuard(cfg *config.Server, next http.Handler) *guard {
	g := &guard{hosts: map[string]bool{}, origins: map[string]bool{}, next: next}
	for _, h := range cfg.AllowedHosts {
		g.hosts[hostName(h)] = true
	}
	if host, _, err := net.SplitHostPort(cfg.Listen); err == nil && host != "" {
		g.hosts[hostName(host)] = true
	}
	for _, list := range [][]string{cfg.TrustedOrigins, cfg.CORSOrigins} {
		for _, o := range list {
			g.origins[strings.ToLower(o)] = true
		}
	}
	return g
}

// ServeHTTP answers refused requests and passes the others on.
func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !g.hostAllowed(r.Host) {
		invalidRequest(http.StatusForbidden, "host_not_allowed",
			"the host name %q is not allowed: use localhost or an IP address, or add the name to server.allowed_hosts", r.Host).write(w)
		return
	}
	if origin := r.Header.Get("Origin"); origin != "" && !g.originAllowed(origin, r.Host) {
		invalidRequest(http.StatusForbidden, "origin_not_allowed",
			"requests from the origin %q are not allowed: add it to server.trusted_origins", origin).write(w)
		return
	}
	g.next.ServeHTTP(w, r)
}

// hostAllowed reports whether a Host header names this machine in a way that no
// name server can bend. HTTP/1.0 clients, which are no browsers, may leave it
// out.
func (g *guard) hostAllowed(host string) bool {
	name := hostName(host)
	return host == "" || local(name) || g.hosts[name]
}

// originAllowed reports whether a page of that origin may send requests: the
// server's own, those served by this machine, and the trusted ones.
func (g *guard) originAllowed(origin, host string) bool {
	if g.origins[strings.ToLower(origin)] {
		return true
	}
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" {
		return false // such as "null"
	}
	name := hostName(u.Host)
	addr, err := netip.ParseAddr(name)
	loopback := err == nil && addr.IsLoopback()
	return strings.EqualFold(u.Host, host) || loopback || localhost(name)
}

// hostName is the lower-case name or address of HOST or HOST:PORT.
func hostName(s string) string {
	if host, _, err := net.SplitHostPort(s); err == nil {
		s = host
	}
	s = strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
	return strings.TrimSuffix(strings.ToLower(s), ".")
}

func localhost(name string) bool {
	return name == "localhost" || strings.HasSuffix(name, ".localhost")
}

// local reports whether a name is fixed: an IP address, or localhost.
func local(name string) bool {
	_, err := netip.ParseAddr(name)
	return err == nil || localhost(name)
}
