// Command etcd is etcd's own server; upstream does not publish its main package as a module.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
