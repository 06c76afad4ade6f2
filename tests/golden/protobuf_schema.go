package main

import (
	"log"
	"reflect"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// protobufGroups are the groups whose objects the test kit's API server accepts in protobuf.
var protobufGroups = []schema.GroupVersion{
	corev1.SchemeGroupVersion, appsv1.SchemeGroupVersion, batchv1.SchemeGroupVersion, coordinationv1.SchemeGroupVersion,
	eventsv1.SchemeGroupVersion, rbacv1.SchemeGroupVersion,
}

// schemaLine is a message with its fields, or a kind with the name of its message.
type schemaLine struct {
	APIVersion string        `json:"apiVersion,omitempty"`
	Kind       string        `json:"kind,omitempty"`
	Message    string        `json:"message"`
	Fields     []schemaField `json:"fields,omitempty"`
}

type schemaField struct {
	Number int `json:"number"`
	// Name in JSON; empty if the message's fields are inlined.
	Name string `json:"name,omitempty"`
	// Type is a message (its name has dots), or one of scalarTypes and specialTypes.
	Type string `json:"type"`
	// Form is `optional` (a pointer), `list` or `map` (from strings); empty for a value that is always written.
	Form string `json:"form,omitempty"`
	// OmitEmpty leaves the field out of JSON when it is empty.
	OmitEmpty bool `json:"omitEmpty,omitempty"`
}

// specialTypes have their own JSON form.
var specialTypes = map[reflect.Type]string{
	reflect.TypeFor[metav1.Time]():          "time",
	reflect.TypeFor[metav1.MicroTime]():     "microTime",
	reflect.TypeFor[intstr.IntOrString]():   "intOrString",
	reflect.TypeFor[resource.Quantity]():    "quantity",
	reflect.TypeFor[runtime.RawExtension](): "rawJSON",
	reflect.TypeFor[metav1.FieldsV1]():      "rawJSON",
}

var scalarTypes = map[reflect.Kind]string{
	reflect.String: "string", reflect.Bool: "bool", reflect.Int32: "int32", reflect.Int64: "int64",
}

// schemaWriter collects the messages that fields refer to.
type schemaWriter struct {
	seen  map[reflect.Type]bool
	lines []schemaLine
}

// protobufSchema describes the kinds of protobufGroups, from the tags that upstream's marshaller is generated from.
func protobufSchema() []schemaLine {
	writer := schemaWriter{seen: map[reflect.Type]bool{}}
	for _, kind := range protobufKinds() {
		object, err := scheme.New(kind)
		must(err)
		writer.kind(kind, reflect.TypeOf(object).Elem())
	}
	meta := metav1.SchemeGroupVersion
	writer.kind(schema.GroupVersionKind{Version: "v1", Kind: "DeleteOptions"}, reflect.TypeFor[metav1.DeleteOptions]())
	writer.kind(meta.WithKind("PartialObjectMetadata"), reflect.TypeFor[metav1.PartialObjectMetadata]())
	writer.kind(meta.WithKind("PartialObjectMetadataList"), reflect.TypeFor[metav1.PartialObjectMetadataList]())
	slices.SortStableFunc(writer.lines, func(a, b schemaLine) int {
		return strings.Compare(a.APIVersion+" "+a.Kind+" "+a.Message, b.APIVersion+" "+b.Kind+" "+b.Message)
	})
	return writer.lines
}

// protobufKinds returns the objects and lists of protobufGroups in a fixed order.
func protobufKinds() []schema.GroupVersionKind {
	var kinds []schema.GroupVersionKind
	for _, version := range protobufGroups {
		for kind, kindType := range ordered(scheme.KnownTypes(version)) {
			_, isObject := kindType.FieldByName("ObjectMeta")
			_, isList := kindType.FieldByName("ListMeta")
			// Every group also has the types of meta/v1.
			if (isObject || isList) && strings.HasPrefix(kindType.PkgPath(), "k8s.io/api/") {
				kinds = append(kinds, version.WithKind(kind))
			}
		}
	}
	return kinds
}

func (w *schemaWriter) kind(kind schema.GroupVersionKind, message reflect.Type) {
	w.lines = append(w.lines, schemaLine{APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Message: w.message(message)})
}

// message describes a struct and returns the message's name.
func (w *schemaWriter) message(message reflect.Type) string {
	path := strings.Split(message.PkgPath(), "/")
	name := strings.Join(append(path[len(path)-2:], message.Name()), ".")
	if w.seen[message] {
		return name
	}
	w.seen[message] = true
	line := schemaLine{Message: name}
	for _, field := range reflect.VisibleFields(message) {
		if tag, ok := field.Tag.Lookup("protobuf"); ok && len(field.Index) == 1 && tag != "-" {
			line.Fields = append(line.Fields, w.field(name, field, tag))
		}
	}
	slices.SortFunc(line.Fields, func(a, b schemaField) int { return a.Number - b.Number })
	w.lines = append(w.lines, line)
	return name
}

func (w *schemaWriter) field(message string, field reflect.StructField, tag string) schemaField {
	number, err := strconv.Atoi(strings.Split(tag, ",")[1])
	must(err)
	jsonName, options, _ := strings.Cut(field.Tag.Get("json"), ",")
	result := schemaField{Number: number, Name: jsonName}
	element := field.Type
	isBytes := element == reflect.TypeFor[[]byte]()
	switch kind := element.Kind(); {
	case isBytes:
	case kind == reflect.Pointer:
		element, result.Form = element.Elem(), "optional"
	case kind == reflect.Slice:
		element, result.Form = element.Elem(), "list"
	case kind == reflect.Map && element.Key().Kind() == reflect.String:
		element, result.Form = element.Elem(), "map"
	}
	result.Type = w.elementType(element)
	isInline := strings.Contains(options, "inline")
	if (jsonName == "") != isInline || isInline && (result.Form != "" || !strings.Contains(result.Type, ".")) {
		log.Fatalf("%s.%s has a JSON name that the schema can't express", message, field.Name)
	}
	// JSON's omitempty has no effect for structs; omitzero has.
	canBeEmpty := result.Form != "" || isBytes || scalarTypes[element.Kind()] != ""
	result.OmitEmpty = canBeEmpty && strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")
	if strings.Contains(options, "omitzero") && result.Type != "time" {
		log.Fatalf("%s.%s is left out of JSON when it is zero, which the test kit supports only for times", message, field.Name)
	}
	return result
}

func (w *schemaWriter) elementType(element reflect.Type) string {
	if special, ok := specialTypes[element]; ok {
		return special
	}
	if element == reflect.TypeFor[[]byte]() {
		return "bytes"
	}
	// A type with its own marshaller is not a scalar, whatever its Go kind is.
	_, marshals := reflect.PointerTo(element).MethodByName("Marshal")
	if scalar, ok := scalarTypes[element.Kind()]; ok && !marshals {
		return scalar
	}
	if element.Kind() != reflect.Struct {
		log.Fatalf("%s is not supported in the protobuf schema", element)
	}
	return w.message(element)
}
