package images

import (
	"bytes"
	"encoding/pem"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// Authorities returns, as PEM, the authorities that Mozilla trusts for servers. Those that it trusts only with
// constraints are left out, because a PEM file can't express these. The version in go.mod decides which ones; a file of
// the build machine would be arbitrary.
func Authorities() ([]byte, error) {
	var file bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		if err := pem.Encode(&file, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	return file.Bytes(), nil
}
