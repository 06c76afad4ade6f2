// Command build builds kube-apiserver, kubectl, etcd, Helm, cert-manager, an OCI registry and the programs of a node
// for the end-to-end tests, once; see the binaries package.
package main

import (
	"fmt"
	"os"

	"ctrlmesh.kusionstack.io/e2e/binaries"
)

func main() {
	if err := binaries.Build(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
