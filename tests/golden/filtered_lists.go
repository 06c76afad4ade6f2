package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"log"
	"slices"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
)

// filteredBody is a response body, and the body that upstream writes for the kept objects alone.
type filteredBody struct {
	Name     string `json:"name"`
	Encoding string `json:"encoding"`
	// Kind is "list" or "watch".
	Kind string   `json:"kind"`
	Body []byte   `json:"body"`
	Keep []string `json:"keep"`
	// Drop are the fields that are removed from kept objects.
	Drop     []string `json:"drop,omitempty"`
	Filtered []byte   `json:"filtered,omitempty"`
	// Items are kept objects without such fields as they occur in the body.
	Items []filteredItem `json:"items,omitempty"`
	// DroppedUIDs occur only in objects that are not kept.
	DroppedUIDs []string `json:"droppedUids,omitempty"`
}

type filteredItem struct {
	Name  string `json:"name"`
	Bytes []byte `json:"bytes"`
}

// bodyEncoding is one encoding of response bodies.
type bodyEncoding struct {
	name string
	// body is for lists, and for the objects in events.
	body   runtime.Serializer
	stream runtime.Serializer
	framer runtime.Framer
}

var (
	filterScheme   = newFilterScheme()
	jsonBodies     = &bodyEncoding{"json", newJSONSerializer(false), newJSONSerializer(false), jsonserializer.Framer}
	prettyBodies   = &bodyEncoding{"json", newJSONSerializer(true), newJSONSerializer(false), jsonserializer.Framer}
	protobufBodies = &bodyEncoding{
		"protobuf", protobuf.NewSerializer(filterScheme, filterScheme), protobuf.NewRawSerializer(filterScheme, filterScheme),
		protobuf.LengthDelimitedFramer,
	}
	cborBodies = &bodyEncoding{
		"cbor", cbor.NewSerializer(filterScheme, filterScheme), cbor.NewSerializer(filterScheme, filterScheme, cbor.Transcode(false)),
		cbor.NewFramer(),
	}
)

// newFilterScheme returns a scheme that can decode tables and metadata as well.
func newFilterScheme() *runtime.Scheme {
	scheme := newScheme()
	must(metav1.AddMetaToScheme(scheme))
	return scheme
}

func newJSONSerializer(isPretty bool) runtime.Serializer {
	options := jsonserializer.SerializerOptions{Pretty: isPretty}
	return jsonserializer.NewSerializerWithOptions(jsonserializer.DefaultMetaFactory, filterScheme, filterScheme, options)
}

func filteredLists() []filteredBody {
	var out []filteredBody
	for _, sample := range listSamples() {
		for _, encoding := range sample.encodings {
			body := encode(encoding.body, sample.list)
			for _, choice := range choices(sample.objects) {
				out = append(out, filteredBody{
					Name: sample.name + ", " + choice.name, Encoding: encoding.name, Kind: "list", Body: body, Keep: choice.keep,
					Drop:        choice.drop,
					Filtered:    encoding.filterList(body, sample.list, choice),
					Items:       encoding.listItems(body, sample.list, choice.unchanged(sample.objects)),
					DroppedUIDs: droppedUIDs(sample.objects, choice.keep),
				})
			}
		}
	}
	for _, sample := range watchSamples() {
		for _, encoding := range sample.encodings {
			body := encoding.encodeWatch(sample.events)
			for _, choice := range choices(sample.objects) {
				out = append(out, filteredBody{
					Name: sample.name + ", " + choice.name, Encoding: encoding.name, Kind: "watch", Body: body, Keep: choice.keep,
					Drop:        choice.drop,
					Filtered:    encoding.filterWatch(body, sample.events[0].object, choice),
					Items:       encoding.watchItems(body, sample.events, choice.unchanged(sample.objects)),
					DroppedUIDs: droppedUIDs(sample.objects, choice.keep),
				})
			}
		}
	}
	return out
}

// choice is a set of names that are kept, and the fields that are removed from their objects: none, or those that
// dropFields removes.
type choice struct {
	name string
	keep []string
	drop []string
}

const droppedAnnotation = "example.com/last-applied"

var droppedFields = []string{"metadata.managedFields", `metadata.annotations["` + droppedAnnotation + `"]`}

// dropFields removes the fields from an object as a client would.
func dropFields(object metav1.Object) {
	object.SetManagedFields(nil)
	annotations := object.GetAnnotations()
	if _, isThere := annotations[droppedAnnotation]; isThere {
		delete(annotations, droppedAnnotation)
		object.SetAnnotations(annotations)
	}
}

// unchanged returns the names of the kept objects that have no field that is removed.
func (c choice) unchanged(objects []metav1.ObjectMeta) []string {
	if c.drop == nil {
		return c.keep
	}
	return slices.DeleteFunc(slices.Clone(c.keep), func(name string) bool {
		index := slices.IndexFunc(objects, func(object metav1.ObjectMeta) bool { return object.Name == name })
		_, hasAnnotation := objects[index].Annotations[droppedAnnotation]
		return hasAnnotation || len(objects[index].ManagedFields) > 0
	})
}

func choices(objects []metav1.ObjectMeta) []choice {
	names := []string{}
	for _, object := range objects {
		names = append(names, object.Name)
	}
	out := []choice{{"all kept", names, nil}}
	if len(names) > 0 {
		out = append(out, choice{"none kept", []string{}, nil}, choice{"all kept without fields", names, droppedFields})
	}
	if last := len(names) - 1; last > 0 {
		out = append(
			out,
			choice{"first dropped", names[1:], nil},
			choice{"last dropped", names[:last], nil},
			choice{"one kept", names[1:2], nil},
			choice{"first dropped, others without fields", names[1:], droppedFields},
		)
	}
	return out
}

func droppedUIDs(objects []metav1.ObjectMeta, keep []string) []string {
	var out []string
	for _, object := range objects {
		if !slices.Contains(keep, object.Name) {
			out = append(out, string(object.UID))
		}
	}
	return out
}

// decode decodes a custom resource into maps, as it is in the sample, and everything else into its type.
func (e *bodyEncoding) decode(body []byte, sample runtime.Object) runtime.Object {
	var into runtime.Object
	switch sample.(type) {
	case *unstructured.UnstructuredList:
		into = &unstructured.UnstructuredList{}
	case *unstructured.Unstructured:
		into = &unstructured.Unstructured{}
	}
	object, _, err := e.body.Decode(body, nil, into)
	must(err)
	return object
}

// filterList decodes a body, removes what is not kept, and encodes it again.
func (e *bodyEncoding) filterList(body []byte, sample runtime.Object, choice choice) []byte {
	object := e.decode(body, sample)
	switch list := object.(type) {
	case *metav1.Status:
	case *metav1.Table:
		list.Rows = slices.DeleteFunc(list.Rows, func(row metav1.TableRow) bool {
			return !slices.Contains(choice.keep, rowObject(row).Name)
		})
		for index, row := range list.Rows {
			if choice.drop != nil {
				object := rowObject(row)
				dropFields(object)
				list.Rows[index].Object = runtime.RawExtension{Object: object}
			}
		}
		list.RemainingItemCount = nil
	default:
		filterItems(list, choice)
	}
	return encode(e.body, object)
}

func filterItems(list runtime.Object, choice choice) {
	items, err := apimeta.ExtractList(list)
	must(err)
	kept := slices.DeleteFunc(slices.Clone(items), func(item runtime.Object) bool {
		return !slices.Contains(choice.keep, objectName(item))
	})
	if choice.drop != nil {
		for _, item := range kept {
			dropFieldsOf(item)
		}
	}
	// Items that are null must stay so.
	if len(kept) < len(items) || choice.drop != nil {
		must(apimeta.SetList(list, kept))
	}
	accessor, err := apimeta.ListAccessor(list)
	must(err)
	accessor.SetRemainingItemCount(nil)
}

func objectName(object runtime.Object) string {
	accessor, err := apimeta.Accessor(object)
	must(err)
	return accessor.GetName()
}

func dropFieldsOf(object runtime.Object) {
	accessor, err := apimeta.Accessor(object)
	must(err)
	dropFields(accessor)
}

func rowObject(row metav1.TableRow) *metav1.PartialObjectMetadata {
	var object metav1.PartialObjectMetadata
	must(json.Unmarshal(row.Object.Raw, &object))
	return &object
}

// watchedEvent is an event before it is encoded.
type watchedEvent struct {
	kind   string
	object runtime.Object
}

func (e watchedEvent) hasName() bool { return e.kind != "BOOKMARK" && e.kind != "ERROR" }

// encodeWatch encodes events as the API server does (apiserver pkg/endpoints/handlers/watch.go), but with the keys of
// CBOR in order.
func (e *bodyEncoding) encodeWatch(events []watchedEvent) []byte {
	var out bytes.Buffer
	frames := e.framer.NewFrameWriter(&out)
	for _, event := range events {
		raw := encode(e.body, event.object)
		must(e.stream.Encode(&metav1.WatchEvent{Type: event.kind, Object: runtime.RawExtension{Raw: raw}}, frames))
	}
	return out.Bytes()
}

// filterWatch decodes the events of a watch, and encodes those again that a client gets.
func (e *bodyEncoding) filterWatch(body []byte, sample runtime.Object, choice choice) []byte {
	decoder := streaming.NewDecoder(e.framer.NewFrameReader(io.NopCloser(bytes.NewReader(body))), e.stream)
	var kept []watchedEvent
	for {
		var encoded metav1.WatchEvent
		_, _, err := decoder.Decode(nil, &encoded)
		if errors.Is(err, io.EOF) {
			return e.encodeWatch(kept)
		}
		must(err)
		event := watchedEvent{encoded.Type, e.decode(encoded.Object.Raw, sample)}
		if !event.hasName() || slices.Contains(choice.keep, objectName(event.object)) {
			if event.hasName() && choice.drop != nil {
				dropFieldsOf(event.object)
			}
			kept = append(kept, event)
		}
	}
}

// selfDescribed is the tag before each CBOR body. An item of a list does not have it.
var selfDescribed = []byte{0xd9, 0xd9, 0xf7}

// listItems returns the bytes of the kept items. Rows of a table in CBOR are left out, because they are not objects.
func (e *bodyEncoding) listItems(body []byte, list runtime.Object, keep []string) []filteredItem {
	if e.name == "json" {
		return jsonItems(body, keep)
	}
	if !apimeta.IsListType(list) {
		return nil
	}
	objects, err := apimeta.ExtractList(list)
	must(err)
	var out []filteredItem
	for _, object := range objects {
		if e.name == "cbor" {
			out = append(out, filteredItem{objectName(object), bytes.TrimPrefix(encode(e.body, object), selfDescribed)})
			continue
		}
		raw, err := object.(interface{ Marshal() ([]byte, error) }).Marshal()
		must(err)
		out = append(out, filteredItem{objectName(object), raw})
	}
	return keptItems(body, out, keep)
}

// jsonItems cuts the items of a list, or the rows of a table, out of the body.
func jsonItems(body []byte, keep []string) []filteredItem {
	type named struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	var list struct {
		Items []json.RawMessage `json:"items"`
		Rows  []json.RawMessage `json:"rows"`
	}
	must(json.Unmarshal(body, &list))
	var out []filteredItem
	for _, raw := range slices.Concat(list.Items, list.Rows) {
		var item struct {
			named
			Object named `json:"object"`
		}
		must(json.Unmarshal(raw, &item))
		out = append(out, filteredItem{cmp.Or(item.Metadata.Name, item.Object.Metadata.Name), raw})
	}
	return keptItems(body, out, keep)
}

// watchItems returns the bytes of the kept objects. Events in protobuf are the same bytes before and after.
func (e *bodyEncoding) watchItems(body []byte, events []watchedEvent, keep []string) []filteredItem {
	var out []filteredItem
	for _, event := range events {
		if !event.hasName() || e.name == "protobuf" {
			continue
		}
		raw := encode(e.body, event.object)
		if e.name == "json" {
			raw = bytes.TrimSuffix(raw, []byte("\n"))
		}
		out = append(out, filteredItem{objectName(event.object), raw})
	}
	return keptItems(body, out, keep)
}

func keptItems(body []byte, items []filteredItem, keep []string) []filteredItem {
	for _, item := range items {
		if !bytes.Contains(body, item.Bytes) {
			log.Fatalf("the body does not have %q as it is encoded alone", item.Name)
		}
	}
	return slices.DeleteFunc(items, func(item filteredItem) bool { return !slices.Contains(keep, item.Name) })
}
