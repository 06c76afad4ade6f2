package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

const (
	jsonType     = "application/json"
	protobufType = "application/vnd.kubernetes.protobuf"
	from, to     = "lock", "lock---shard-0"
)

// body is an object as upstream encodes it, with one name and with another.
type body struct {
	Name        string `json:"name"`
	ContentType string `json:"contentType"`
	IsWatch     bool   `json:"isWatch,omitempty"`
	From        string `json:"from"`
	To          string `json:"to"`
	Before      binary `json:"before"`
	After       binary `json:"after"`
}

var (
	scheme        = newScheme()
	protobufCodec = protobuf.NewSerializer(scheme, scheme)
	protobufRaw   = protobuf.NewRawSerializer(scheme, scheme)
	jsonCodec     = jsonserializer.NewSerializerWithOptions(jsonserializer.DefaultMetaFactory, scheme, scheme, jsonserializer.SerializerOptions{})
	cborCodec     = cbor.NewSerializer(scheme, scheme)
)

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		appsv1.AddToScheme, batchv1.AddToScheme, coordinationv1.AddToScheme, corev1.AddToScheme, eventsv1.AddToScheme, rbacv1.AddToScheme,
	} {
		must(add(scheme))
	}
	return scheme
}

func encode(codec runtime.Encoder, object runtime.Object) []byte {
	var out bytes.Buffer
	must(codec.Encode(object, &out))
	return out.Bytes()
}

func bodies() []body {
	var out []body
	for name, object := range ordered(sampleObjects) {
		before, after := object(from), object(to)
		if _, isTable := before.(*metav1.Table); !isTable {
			out = append(out, body{name, protobufType, false, from, to, encode(protobufCodec, before), encode(protobufCodec, after)})
			out = append(out, body{name, protobufType + ";stream=watch", true, from, to, protobufWatch(before), protobufWatch(after)})
		}
		out = append(out, body{name, jsonType, false, from, to, encode(jsonCodec, before), encode(jsonCodec, after)})
		out = append(out, body{name, jsonType, true, from, to, jsonWatch(before), jsonWatch(after)})
	}
	withUnknown := func(name string) []byte { return withUnknownFields(lease(name)) }
	out = append(out, body{"Lease with unknown fields", protobufType, false, from, to, withUnknown(from), withUnknown(to)})
	return out
}

// protobufWatch encodes three events as the API server does (apiserver pkg/endpoints/handlers/watch.go).
func protobufWatch(object runtime.Object) []byte {
	var out bytes.Buffer
	frames := protobuf.LengthDelimitedFramer.NewFrameWriter(&out)
	for _, kind := range []string{"ADDED", "MODIFIED", "BOOKMARK"} {
		event := &metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: encode(protobufCodec, object)}}
		must(protobufRaw.Encode(event, frames))
	}
	return out.Bytes()
}

func jsonWatch(object runtime.Object) []byte {
	var out bytes.Buffer
	for _, kind := range []string{"ADDED", "MODIFIED", "BOOKMARK"} {
		event := &metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: bytes.TrimSpace(encode(jsonCodec, object))}}
		must(jsonCodec.Encode(event, &out))
	}
	return out.Bytes()
}

// withUnknownFields adds fields of a later version: to the lease, at the end of its metadata, and to the envelope.
func withUnknownFields(object *coordinationv1.Lease) []byte {
	raw, err := object.Marshal()
	must(err)
	// Field 1000 is the text "new", field 1001 the number 7, group 1002 contains such a number.
	unknown := []byte{0xc2, 0x3e, 3, 'n', 'e', 'w', 0xc8, 0x3e, 7, 0xd3, 0x3e, 0x08, 7, 0xd4, 0x3e}
	envelope := runtime.Unknown{
		TypeMeta: runtime.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
		Raw:      append(append([]byte{}, unknown...), append(raw, unknown...)...),
	}
	wrapped, err := envelope.Marshal()
	must(err)
	return append([]byte("k8s\x00"), append(wrapped, unknown...)...)
}

func meta(name string) metav1.ObjectMeta {
	when := metav1.NewTime(time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC))
	return metav1.ObjectMeta{
		Name: name, Namespace: from, UID: "5d3c9a0e-0b1a-4a3e-9e55-0c9f4b1f2a11", ResourceVersion: "12345", Generation: 3, CreationTimestamp: when,
		Labels: map[string]string{"app": from, "name": from}, Annotations: map[string]string{"note": "a \"" + from + "\" <here> \u00e4"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: from, UID: "u"}},
		ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: from, Operation: "Update", APIVersion: "v1", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:metadata":{"f:name":{}}}`)}}},
	}
}

func lease(name string) *coordinationv1.Lease {
	holder, seconds := from, int32(15)
	renewed := metav1.NewMicroTime(time.Date(2026, 7, 1, 12, 0, 0, 1000, time.UTC))
	return &coordinationv1.Lease{
		TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}, ObjectMeta: meta(name),
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &renewed},
	}
}

func listMeta() metav1.ListMeta {
	remaining := int64(300)
	return metav1.ListMeta{ResourceVersion: "777", Continue: from, RemainingItemCount: &remaining}
}

func status(name string) *metav1.Status {
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Code: 409, Reason: "Conflict",
		Message: fmt.Sprintf("leases.coordination.k8s.io %q is not %q, nor \"lock2\" nor lock", name, name),
		Details: &metav1.StatusDetails{Name: name, Group: "coordination.k8s.io", Kind: "leases", UID: "u", RetryAfterSeconds: 2, Causes: []metav1.StatusCause{
			{Type: "FieldValueInvalid", Message: fmt.Sprintf("Invalid value: %q: no", name), Field: "metadata.name"}}},
	}
}

func table(name string) *metav1.Table {
	row := func(name string, object *metav1.PartialObjectMetadata) metav1.TableRow {
		row := metav1.TableRow{Cells: []any{name, "holder", int64(5)}}
		if object != nil {
			raw, err := json.Marshal(object)
			must(err)
			row.Object.Raw = raw
		}
		return row
	}
	return &metav1.Table{
		TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "Table"}, ListMeta: listMeta(),
		ColumnDefinitions: []metav1.TableColumnDefinition{{Name: "Name", Type: "string", Format: "name", Description: from}},
		Rows:              []metav1.TableRow{row(name, partialMetadata(name)), row("other", partialMetadata("other")), row(name, nil)},
	}
}

func partialMetadata(name string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}, ObjectMeta: meta(name)}
}
