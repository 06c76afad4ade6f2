package images

import (
	"bytes"
	"encoding/pem"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// Authorities are those that Mozilla lets vouch for servers, as PEM. Where it does so under a condition, which a file can't say, the
// authority is left out. The version in go.mod says of which day they are; a file of this machine would say nothing.
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
