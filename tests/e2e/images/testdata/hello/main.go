// Command hello prints its user and the files that it sees.
package main

import (
	"fmt"
	"os"
)

func main() {
	entries, err := os.ReadDir("/")
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	fmt.Println("user", os.Getuid(), "group", os.Getgid())
	for _, entry := range entries {
		fmt.Println(entry.Name())
	}
}
