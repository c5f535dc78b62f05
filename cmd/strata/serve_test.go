package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/strata-engine/strata/core/api"
	"github.com/strata-engine/strata/core/config"
)

// certificate writes a certificate for 127.0.0.1 and its key, and returns the
// files and who trusts them.
func certificate(t *testing.T) (config.TLS, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, public, public, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := config.TLS{CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem")}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for path, data := range map[string][]byte{files.CertFile: cert, files.KeyFile: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cert)
	return files, pool
}

func TestEncryptedServer(t *testing.T) {
	cfg := config.Defaults().Server
	var pool *x509.CertPool
	cfg.TLS, pool = certificate(t)
	cfg.APIKeysFile = filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(cfg.APIKeysFile, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	encryption, err := protection(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address, curl := addresses(listener.Addr(), &cfg)
	if !strings.HasPrefix(address, "https://127.0.0.1:") || !strings.Contains(curl, "-H 'Authorization: Bearer KEY'") {
		t.Errorf("address %s, line %s", address, curl)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- api.New(cfg, "test", nil).Serve(ctx, t.Context(), tls.NewListener(listener, encryption))
	}()
	for _, h2 := range []bool{false, true} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: h2}
		client := &http.Client{Transport: transport}
		for key, status := range map[string]int{"secret": 200, "wrong": 401} {
			req, err := http.NewRequest("GET", address+"/v1/models", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-Api-Key", key)
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != status || (resp.ProtoMajor == 2) != h2 {
				t.Errorf("key %s: status %d, want %d, over %s", key, resp.StatusCode, status, resp.Proto)
			}
		}
		transport.CloseIdleConnections()
	}
	if _, err := http.Get(address + "/health"); err == nil {
		t.Error("a client trusts a certificate that nobody vouches for")
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}

	cfg.TLS.KeyFile = cfg.TLS.CertFile
	if _, err := protection(&cfg); err == nil || !strings.Contains(err.Error(), "server.tls") {
		t.Errorf("a certificate for a key: error %v", err)
	}
	cfg.APIKeysFile = "/nowhere/keys"
	if _, err := protection(&cfg); err == nil || !strings.Contains(err.Error(), "/nowhere/keys") {
		t.Errorf("no file of keys: error %v", err)
	}
}

func TestExposed(t *testing.T) {
	for ip, want := range map[string]bool{"127.0.0.1": false, "127.0.0.2": false, "::1": false, "0.0.0.0": true, "::": true, "192.168.1.5": true} {
		if got := exposed(&net.TCPAddr{IP: net.ParseIP(ip)}); got != want {
			t.Errorf("%s is exposed: %v", ip, got)
		}
	}
}
