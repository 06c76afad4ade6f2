// Command earlier builds ctrlmesh from the earlier commit that tests upgrade from.
package main

import (
	"flag"
	"fmt"
	"os"

	"ctrlmesh.kusionstack.io/e2e/earlier"
)

func main() {
	target := flag.String("target", "", "cargo's target folder of this checkout")
	flag.Parse()
	if err := earlier.Build(*target, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
