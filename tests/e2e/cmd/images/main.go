// Command images writes OCI archives of the sidecar and the manager, built from static programs; see `make images` and
// the images package. Its arguments are the plugins that the manager must contain.
package main

import (
	"flag"
	"fmt"
	"os"
	"text/tabwriter"

	"ctrlmesh.kusionstack.io/e2e/images"
)

func main() {
	var release images.Release
	flag.StringVar(&release.Programs, "programs", "", "directory with the programs")
	flag.StringVar(&release.Precompiled, "precompiled", "", "directory with the sidecar's precompiled plugins; empty: none")
	flag.StringVar(&release.Archives, "archives", "", "directory for the archives")
	flag.StringVar(&release.Registry, "registry", "docker.io/library", "prefix of the images' names")
	flag.StringVar(&release.Version, "version", "", "the images' tag")
	flag.Parse()
	release.Plugins = flag.Args()
	if release.Programs == "" || release.Archives == "" || release.Version == "" {
		flag.Usage()
		os.Exit(2)
	}
	all, err := release.Make()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "IMAGE\tPLATFORM\tARCHIVE\tUNPACKED\tFILE")
	for _, made := range all {
		fmt.Fprintf(table, "%s\t%s\t%.1f MB\t%.1f MB\t%s\n",
			made.Name, made.Platform, float64(made.Compressed)/1e6, float64(made.Unpacked)/1e6, made.Path)
	}
	if err := table.Flush(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
