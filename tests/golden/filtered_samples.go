package main

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// listSample is a list, the metadata of the objects in it, and the encodings in which an API server writes it.
type listSample struct {
	name      string
	list      runtime.Object
	objects   []metav1.ObjectMeta
	encodings []*bodyEncoding
}

func listSamples() []listSample {
	all := filteredObjects()
	one, none := all[1:2], []metav1.ObjectMeta(nil)
	whole := metav1.ListMeta{ResourceVersion: "778"}
	compact := []*bodyEncoding{jsonBodies, protobufBodies, cborBodies}
	withoutProtobuf := []*bodyEncoding{jsonBodies, prettyBodies, cborBodies}
	everything := []*bodyEncoding{jsonBodies, prettyBodies, protobufBodies, cborBodies}
	withoutItems := configMapList(none, metav1.ListMeta{})
	withoutItems.Items = nil
	return []listSample{
		{"PodList", podList(all, listMeta()), all, []*bodyEncoding{jsonBodies, protobufBodies}},
		{"ConfigMapList", configMapList(all, listMeta()), all, everything},
		{"WidgetList", widgetList(all, listMeta()), all, withoutProtobuf},
		{"PartialObjectMetadataList", partialMetadataList(all, listMeta()), all, compact},
		{"Table", metadataTable(all, listMeta()), all, withoutProtobuf},
		{"ConfigMapList with one item", configMapList(one, whole), one, compact},
		{"ConfigMapList without items", configMapList(none, whole), none, everything},
		{"ConfigMapList with null items", withoutItems, none, compact},
		{"WidgetList with one item", widgetList(one, whole), one, []*bodyEncoding{jsonBodies, cborBodies}},
		{"WidgetList without items", widgetList(none, whole), none, []*bodyEncoding{jsonBodies, cborBodies}},
		{"Table without rows", metadataTable(none, whole), none, []*bodyEncoding{jsonBodies, cborBodies}},
		{"Status", status("gone"), none, everything},
	}
}

// watchSample is a watch, and the metadata of the objects in it.
type watchSample struct {
	name      string
	events    []watchedEvent
	objects   []metav1.ObjectMeta
	encodings []*bodyEncoding
}

func watchSamples() []watchSample {
	all, none := filteredObjects(), []metav1.ObjectMeta(nil)
	compact := []*bodyEncoding{jsonBodies, protobufBodies, cborBodies}
	typedPod := func(object metav1.ObjectMeta) runtime.Object {
		item := pod(object)
		item.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
		return &item
	}
	typedConfigMap := func(object metav1.ObjectMeta) runtime.Object {
		item := configMap(object)
		item.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}
		return &item
	}
	customObject := func(object metav1.ObjectMeta) runtime.Object { return widget(object) }
	metadataAlone := func(object metav1.ObjectMeta) runtime.Object { return metadataObject(object) }
	bookmark := watchedEvent{"BOOKMARK", typedConfigMap(initialEventsEnd)}
	return []watchSample{
		{"watch of Pods", watchEvents(typedPod), all, []*bodyEncoding{jsonBodies, protobufBodies}},
		{"watch of ConfigMaps", watchEvents(typedConfigMap), all, []*bodyEncoding{cborBodies}},
		{"watch of Widgets", watchEvents(customObject), all, []*bodyEncoding{jsonBodies, cborBodies}},
		{"watch of metadata", watchEvents(metadataAlone), all, compact},
		{"watch with a bookmark alone", []watchedEvent{bookmark}, none, compact},
		{"watch with an error alone", []watchedEvent{{"ERROR", status("gone")}}, none, compact},
	}
}

var initialEventsEnd = metav1.ObjectMeta{ResourceVersion: "200", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}

// watchEvents returns events of each type, about the same objects as in the lists.
func watchEvents(newObject func(metav1.ObjectMeta) runtime.Object) []watchedEvent {
	all := filteredObjects()
	object := func(index int, version string) runtime.Object {
		object := all[index]
		object.ResourceVersion = version
		return newObject(object)
	}
	return []watchedEvent{
		{"ADDED", object(0, "101")},
		{"ADDED", object(1, "102")},
		{"BOOKMARK", newObject(initialEventsEnd)},
		{"MODIFIED", object(1, "201")},
		{"ADDED", object(2, "202")},
		{"DELETED", object(0, "203")},
		{"BOOKMARK", newObject(metav1.ObjectMeta{ResourceVersion: "204"})},
		{"MODIFIED", object(3, "205")},
		{"ERROR", status("gone")},
	}
}

// filteredObjects returns the metadata of four objects. Their UIDs occur nowhere else.
func filteredObjects() []metav1.ObjectMeta {
	yes, no, seconds := true, false, int64(30)
	when := metav1.NewTime(time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC))
	deleted := metav1.NewTime(time.Date(2026, 7, 1, 12, 0, 1, 0, time.UTC))
	return []metav1.ObjectMeta{
		{Name: "plain", Namespace: "n1", UID: "uid-of-plain", ResourceVersion: "101", CreationTimestamp: when},
		{
			Name: "quoted \"<&>\\\" /\t", GenerateName: "quoted", Namespace: "n1", UID: "uid-of-quoted", ResourceVersion: "102", Generation: 3,
			CreationTimestamp: when, DeletionTimestamp: &deleted, DeletionGracePeriodSeconds: &seconds, Finalizers: []string{"example.com/hold"},
			Labels: map[string]string{"app": "a", "example.com/empty": "", "name": "plain"},
			Annotations: map[string]string{
				"example.com/last-applied": `{"kind":"List","metadata":{"name":"plain"},"items":[{"metadata":{"name":"x"}}]}`,
				"metadata":                 "\"}]},{\"metadata\":{\"name\":\"plain\"}",
			},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "Pod", Name: "plain", UID: "uid-of-owner", Controller: &no},
				{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "r\u00e4", UID: "uid-of-controller", Controller: &yes, BlockOwnerDeletion: &yes},
			},
			ManagedFields: []metav1.ManagedFieldsEntry{
				{
					Manager: "m\u2028", Operation: metav1.ManagedFieldsOperationApply, APIVersion: "v1", Time: &when, FieldsType: "FieldsV1",
					FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:metadata":{"f:name":{},"k:{\"uid\":\"x\"}":{".":{}}}}`)}, Subresource: "status",
				},
			},
		},
		{
			Name: "\u00fcn\u00ef\u2028\U0001F600", UID: "uid-of-unicode", ResourceVersion: "103", CreationTimestamp: when,
			Labels: map[string]string{"\u00fc": "\u2029\U0001F680", "uid": "plain"}, Annotations: map[string]string{"": "\x00\x1f\x7f", "\\": "\\u0022"},
		},
		{Name: "last", Namespace: "n2", UID: "uid-of-last", ResourceVersion: "104", Labels: map[string]string{"app": "a"}},
	}
}

func pod(object metav1.ObjectMeta) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: object,
		Spec: corev1.PodSpec{
			NodeName: "node-1",
			Containers: []corev1.Container{{
				Name: "c", Image: "registry.example.com/c:1", Args: []string{"--metadata", `{"items":[`},
				Env:       []corev1.EnvVar{{Name: "UID", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.uid"}}}},
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("250m"), "memory": resource.MustParse("1Gi")}},
			}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1"},
	}
}

func podList(objects []metav1.ObjectMeta, list metav1.ListMeta) *corev1.PodList {
	out := &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, ListMeta: list, Items: []corev1.Pod{}}
	for _, object := range objects {
		out.Items = append(out.Items, pod(object))
	}
	return out
}

func configMap(object metav1.ObjectMeta) corev1.ConfigMap {
	return corev1.ConfigMap{
		ObjectMeta: object,
		Data:       map[string]string{"items": `[{"metadata":{"name":"plain"}}]`, "metadata": "}]\"\\", "\u00fc": "\x00\u2028\U0001F600</script>"},
		BinaryData: map[string][]byte{"bytes": {0, 255, 'k', '8', 's', 0}},
	}
}

func configMapList(objects []metav1.ObjectMeta, list metav1.ListMeta) *corev1.ConfigMapList {
	out := &corev1.ConfigMapList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMapList"}, ListMeta: list, Items: []corev1.ConfigMap{}}
	for _, object := range objects {
		out.Items = append(out.Items, configMap(object))
	}
	return out
}

// widget returns a custom resource, whose content is a map, so that its keys are in order.
func widget(object metav1.ObjectMeta) *unstructured.Unstructured {
	typeMeta := metav1.TypeMeta{APIVersion: "example.com/v1", Kind: "Widget"}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&metav1.PartialObjectMetadata{TypeMeta: typeMeta, ObjectMeta: object})
	must(err)
	content["data"] = map[string]any{"metadata": map[string]any{"name": "plain", "uid": "x"}, "items": []any{}}
	content["spec"] = map[string]any{
		"items":   []any{map[string]any{"metadata": map[string]any{"name": "plain"}}, []any{[]any{}, map[string]any{}}, nil, true, "]}"},
		"numbers": []any{int64(0), int64(-1), int64(9007199254740993), 2.5, -1e-7, 1e300},
	}
	return &unstructured.Unstructured{Object: content}
}

func widgetList(objects []metav1.ObjectMeta, list metav1.ListMeta) *unstructured.UnstructuredList {
	metadata, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&list)
	must(err)
	out := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "WidgetList", "metadata": metadata}}
	for _, object := range objects {
		out.Items = append(out.Items, *widget(object))
	}
	return out
}

func metadataObject(object metav1.ObjectMeta) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}, ObjectMeta: object}
}

func partialMetadataList(objects []metav1.ObjectMeta, list metav1.ListMeta) *metav1.PartialObjectMetadataList {
	out := &metav1.PartialObjectMetadataList{
		TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"}, ListMeta: list, Items: []metav1.PartialObjectMetadata{},
	}
	for _, object := range objects {
		out.Items = append(out.Items, *metadataObject(object))
	}
	return out
}

func metadataTable(objects []metav1.ObjectMeta, list metav1.ListMeta) *metav1.Table {
	out := &metav1.Table{
		TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "Table"}, ListMeta: list, Rows: []metav1.TableRow{},
		ColumnDefinitions: []metav1.TableColumnDefinition{{Name: "Name", Type: "string", Format: "name", Description: "rows"}, {Name: "Age"}},
	}
	for _, object := range objects {
		out.Rows = append(out.Rows, metav1.TableRow{
			Cells:  []any{object.Name, int64(5), nil, []any{"metadata"}},
			Object: runtime.RawExtension{Object: metadataObject(object)},
		})
	}
	return out
}
