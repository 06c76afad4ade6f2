package sidecar

import (
	"crypto/ed25519"
	"encoding/base64"
	"strings"
)

// Names of files in the chain's volume.
const (
	documentFile  = "chain.yaml"
	signatureFile = "chain.yaml.sig"
	pluginSuffix  = ".wasm"
)

// Signer is a key pair that signs chains, like the manager's.
type Signer struct {
	public  ed25519.PublicKey
	private ed25519.PrivateKey
}

// NewSigner creates a key pair.
func NewSigner() (*Signer, error) {
	public, private, err := ed25519.GenerateKey(nil)
	return &Signer{public, private}, err
}

// PublicKey is encoded as the sidecar's flag expects it.
func (s *Signer) PublicKey() string { return "ed25519:" + base64.StdEncoding.EncodeToString(s.public) }

// Sign returns the content of the signature file for a document.
func (s *Signer) Sign(document []byte) []byte {
	return []byte(base64.StdEncoding.EncodeToString(ed25519.Sign(s.private, document)))
}

// Files of the volume: the document, its signature if there is a signer, and the plugins by digest.
func (c Chain) Files(signer *Signer) (map[string][]byte, error) {
	document, err := c.YAML()
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{documentFile: document}
	if signer != nil {
		files[signatureFile] = signer.Sign(document)
	}
	for _, plugin := range c.Plugins {
		files[PluginFile(plugin)] = plugin.Bytes
	}
	return files, nil
}

// PluginFile is the name of a plugin's file in the volume.
func PluginFile(plugin Plugin) string {
	return strings.TrimPrefix(plugin.Digest(), "sha256:") + pluginSuffix
}
