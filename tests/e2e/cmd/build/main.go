// Command build builds kube-apiserver, kubectl, etcd, Helm, cert-manager, an OCI registry and the programs of a node
// for the end-to-end tests, once; see the binaries package.
package main

import (
	"flag"
	"fmt"
	"os"

	"ctrlmesh.kusionstack.io/e2e/binaries"
)

func main() {
	withNode := flag.Bool("node", true, "also build the programs of a node, where one can run")
	flag.Parse()
	if err := binaries.Build(os.Stdout, *withNode); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
