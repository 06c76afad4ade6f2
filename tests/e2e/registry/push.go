package registry

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// Media types of the layout of CNCF TAG-Runtime, and of cosign (pkg/types/media.go).
const (
	manifestType  = "application/vnd.oci.image.manifest.v1+json"
	configType    = "application/vnd.wasm.config.v0+json"
	layerType     = "application/wasm"
	imageType     = "application/vnd.oci.image.config.v1+json"
	signedType    = "application/vnd.dev.cosign.simplesigning.v1+json"
	signatureName = "dev.cosignproject.cosign/signature"
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

// Push pushes a WebAssembly component with a tag and returns the digest of its manifest. An existing tag is moved.
func (r *Registry) Push(repository, tag string, wasm []byte) (string, error) {
	layer, err := r.pushBlob(repository, layerType, wasm)
	if err != nil {
		return "", err
	}
	config, err := json.Marshal(map[string]any{
		"created":      "2026-01-01T00:00:00Z",
		"architecture": "wasm",
		"os":           "wasip2",
		"layerDigests": []string{layer.Digest},
	})
	if err != nil {
		return "", err
	}
	about, err := r.pushBlob(repository, configType, config)
	if err != nil {
		return "", err
	}
	return r.pushManifest(repository, tag, about, layer)
}

// Sign pushes a signature of a manifest.
func (r *Registry) Sign(repository, manifest string, key *ecdsa.PrivateKey) error {
	text, err := json.Marshal(map[string]any{
		"critical": map[string]any{
			"identity": map[string]any{"docker-reference": r.Host + "/" + repository},
			"image":    map[string]any{"docker-manifest-digest": manifest},
			"type":     "cosign container image signature",
		},
		"optional": nil,
	})
	if err != nil {
		return err
	}
	hash := sha256.Sum256(text)
	signature, err := ecdsa.SignASN1(rand.Reader, key, hash[:])
	if err != nil {
		return err
	}
	layer, err := r.pushBlob(repository, signedType, text)
	if err != nil {
		return err
	}
	layer.Annotations = map[string]string{signatureName: base64.StdEncoding.EncodeToString(signature)}
	config, err := r.pushBlob(repository, imageType, []byte("{}"))
	if err != nil {
		return err
	}
	_, err = r.pushManifest(repository, strings.ReplaceAll(manifest, ":", "-")+".sig", config, layer)
	return err
}

// PublicKey returns the content of cosign.pub for a key.
func PublicKey(key *ecdsa.PrivateKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return "", err
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})), nil
}

func (r *Registry) pushBlob(repository, mediaType string, content []byte) (descriptor, error) {
	digest := digestOf(content)
	begun, err := r.do(http.MethodPost, "/v2/"+repository+"/blobs/uploads/", "", nil, http.StatusAccepted)
	if err != nil {
		return descriptor{}, err
	}
	target, err := url.Parse(begun.Header.Get("Location"))
	if err != nil {
		return descriptor{}, fmt.Errorf("get the upload location: %w", err)
	}
	query := target.Query()
	query.Set("digest", digest)
	target.RawQuery = query.Encode()
	_, err = r.do(http.MethodPut, target.String(), "application/octet-stream", content, http.StatusCreated)
	return descriptor{MediaType: mediaType, Digest: digest, Size: len(content)}, err
}

func (r *Registry) pushManifest(repository, tag string, config descriptor, layer descriptor) (string, error) {
	text, err := json.Marshal(manifest{2, manifestType, config, []descriptor{layer}})
	if err != nil {
		return "", err
	}
	_, err = r.do(http.MethodPut, "/v2/"+repository+"/manifests/"+tag, manifestType, text, http.StatusCreated)
	return digestOf(text), err
}

func digestOf(content []byte) string {
	hash := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(hash[:])
}
