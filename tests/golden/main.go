// Command golden writes what the Kubernetes API server makes of requests, queries, selectors and bodies. The crate
// ctrlmesh-wire must give the same results for each line; see README.md. The same holds for the redirect rules of
// ctrlmesh-proxy.
//
// The inputs are the same on every run: hand-written ones, combinations, and mutations from a fixed seed.
package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"log"
	"os"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

func main() {
	log.SetFlags(0)
	// The resolver logs each option that it can't decode.
	klog.SetLogger(logr.Discard())
	write("request_info.jsonl", requestInfos())
	write("label_selector.jsonl", labelSelectors())
	write("field_selector.jsonl", fieldSelectors())
	write("query.jsonl", queries())
	write("bodies.jsonl", bodies())
	write("statuses.jsonl", statuses())
	write("redirects.jsonl", redirects())
	write("protobuf_objects.jsonl", protobufObjects())
	write("filtered_lists.jsonl", filteredLists())
	write("../../testkit/src/protobuf/schema.jsonl", protobufSchema())
}

// write writes each value on a separate line.
func write[T any](file string, lines []T) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	for _, line := range lines {
		must(encoder.Encode(line))
	}
	must(os.WriteFile(file, out.Bytes(), 0o644))
	log.Printf("%-22s %5d lines %8d bytes", file, len(lines), out.Len())
}

// binary is written as hexadecimal digits.
type binary []byte

func (b binary) MarshalText() ([]byte, error) {
	return []byte(hex.EncodeToString(b)), nil
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
