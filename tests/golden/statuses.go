package main

import (
	"bytes"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

// statusLine is a Status in each encoding, alone and in the ERROR event of a watch.
type statusLine struct {
	JSON          binary `json:"json"`
	Protobuf      binary `json:"protobuf"`
	JSONEvent     binary `json:"jsonEvent"`
	ProtobufEvent binary `json:"protobufEvent"`
	CBOREvent     binary `json:"cborEvent"`
}

func statuses() []statusLine {
	typeMeta := metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	causes := []metav1.StatusCause{{Type: "FieldValueRequired", Message: "Required value", Field: "spec"}, {Message: "only a message"}}
	long := string(bytes.Repeat([]byte("long \u00e4 "), 60))
	var out []statusLine
	for _, sample := range []metav1.Status{
		{Status: "Failure", Code: 410, Reason: "Expired", Message: "too old resource version: 1 (2)"},
		{Status: "Failure", Code: 429, Reason: "TooManyRequests", Message: "slow \"down\"", Details: &metav1.StatusDetails{RetryAfterSeconds: 300}},
		{Status: "Failure", Code: 404, Reason: "NotFound", Details: &metav1.StatusDetails{Name: "x", Group: "g", Kind: "leases"}},
		{Status: "Failure", Code: 422, Reason: "Invalid", Message: long, Details: &metav1.StatusDetails{Name: "x", Kind: "pods", UID: "u", Causes: causes, RetryAfterSeconds: 1}},
		{Status: "Failure", Code: 500, Details: &metav1.StatusDetails{}},
		{Status: "Success", Code: 200},
		*status("lock"),
	} {
		sample.TypeMeta = typeMeta
		out = append(out, statusLine{
			JSON:          encode(jsonCodec, &sample),
			Protobuf:      encode(protobufCodec, &sample),
			JSONEvent:     encode(jsonCodec, errorEvent(bytes.TrimSpace(encode(jsonCodec, &sample)))),
			ProtobufEvent: protobufFrame(errorEvent(encode(protobufCodec, &sample))),
			CBOREvent:     encode(cborCodec, errorEvent(encode(cborCodec, &sample))),
		})
	}
	return out
}

func errorEvent(raw []byte) *metav1.WatchEvent {
	return &metav1.WatchEvent{Type: "ERROR", Object: runtime.RawExtension{Raw: raw}}
}

func protobufFrame(event *metav1.WatchEvent) []byte {
	var out bytes.Buffer
	must(protobufRaw.Encode(event, protobuf.LengthDelimitedFramer.NewFrameWriter(&out)))
	return out.Bytes()
}
