package registry

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"strings"
	"testing"
)

func startRegistry(t *testing.T, login bool) *Registry {
	t.Helper()
	r, err := Start(Spec{Dir: t.TempDir(), Login: login})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Stop(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *Registry) get(t *testing.T, path string) []byte {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, "http://"+r.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", manifestType)
	request.SetBasicAuth(User, Password)
	response, err := r.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v: %s", path, response.Status, err, body)
	}
	return body
}

// TestPushedComponentsVerifyAsWithCosign: pushed components have the layout of wkg, and signatures verify as with cosign.
func TestPushedComponentsVerifyAsWithCosign(t *testing.T) {
	r := startRegistry(t, false)
	wasm := []byte("\x00asm\x0d\x00\x01\x00")
	digest, err := r.Push("you/plugin", "1.0", wasm)
	if err != nil {
		t.Fatal(err)
	}
	text := r.get(t, "/v2/you/plugin/manifests/1.0")
	if digestOf(text) != digest {
		t.Fatalf("the manifest has digest %s, not %s", digestOf(text), digest)
	}
	var m manifest
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	if m.Config.MediaType != "application/vnd.wasm.config.v0+json" || len(m.Layers) != 1 || m.Layers[0].MediaType != "application/wasm" {
		t.Fatalf("unexpected layout: %s", text)
	}
	if got := r.get(t, "/v2/you/plugin/blobs/"+m.Layers[0].Digest); string(got) != string(wasm) {
		t.Fatalf("unexpected component: %q", got)
	}

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Sign("you/plugin", digest, key); err != nil {
		t.Fatal(err)
	}
	text = r.get(t, "/v2/you/plugin/manifests/"+strings.Replace(digest, ":", "-", 1)+".sig")
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	signed := r.get(t, "/v2/you/plugin/blobs/"+m.Layers[0].Digest)
	signature, err := base64.StdEncoding.DecodeString(m.Layers[0].Annotations["dev.cosignproject.cosign/signature"])
	if err != nil {
		t.Fatal(err)
	}
	public, err := PublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode([]byte(public))
	parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	hash := sha256.Sum256(signed)
	if !ecdsa.VerifyASN1(parsed.(*ecdsa.PublicKey), hash[:], signature) || !strings.Contains(string(signed), digest) {
		t.Fatalf("the signature does not verify over %s", signed)
	}
}

func TestRequestWithoutLoginIsRefused(t *testing.T) {
	r := startRegistry(t, true)
	if _, err := r.Push("you/plugin", "1.0", []byte("x")); err != nil {
		t.Fatal(err)
	}
	response, err := http.Get("http://" + r.Host + "/v2/you/plugin/manifests/1.0")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusUnauthorized || !strings.HasPrefix(response.Header.Get("WWW-Authenticate"), "Basic") {
		t.Fatalf("%s, %q", response.Status, response.Header.Get("WWW-Authenticate"))
	}
	r.get(t, "/v2/you/plugin/manifests/1.0")
}
