package main

import (
	"bytes"
	"encoding/json"
	"reflect"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/roundtrip"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// protobufObject is one object in both encodings.
type protobufObject struct {
	Name     string          `json:"name"`
	JSON     json.RawMessage `json:"json"`
	Protobuf binary          `json:"protobuf"`
}

// protobufObjects returns each kind with every field set, each kind with none, and values that are often encoded
// wrongly.
func protobufObjects() []protobufObject {
	var out []protobufObject
	add := func(name string, object runtime.Object) {
		out = append(out, protobufObject{name, bytes.TrimSpace(encode(jsonCodec, object)), encode(protobufCodec, object)})
	}
	for _, kind := range protobufKinds() {
		empty, err := scheme.New(kind)
		must(err)
		empty.GetObjectKind().SetGroupVersionKind(kind)
		add("empty "+kind.GroupVersion().String()+" "+kind.Kind, empty)
		// The items of a list are filled as its kind is.
		if _, isList := empty.(metav1.ListMetaAccessor); !isList {
			filled, err := roundtrip.CompatibilityTestObject(scheme, kind, fillFuncs)
			must(err)
			add("filled "+kind.GroupVersion().String()+" "+kind.Kind, filled)
		}
	}
	for name, object := range ordered(oddObjects()) {
		add(name, object)
	}
	return out
}

// fillFuncs set fields that can't be filled with their name or number.
var fillFuncs = map[reflect.Type]roundtrip.FillFunc{
	// It is set afterwards, and empty in items.
	reflect.TypeFor[*metav1.TypeMeta](): func(string, int, any) {},
	reflect.TypeFor[*metav1.Time](): func(_ string, number int, field any) {
		*field.(*metav1.Time) = metav1.NewTime(time.Date(2000+number, 1, 1, 1, 1, 1, 0, time.UTC))
	},
	reflect.TypeFor[*metav1.MicroTime](): func(_ string, number int, field any) {
		*field.(*metav1.MicroTime) = metav1.NewMicroTime(time.Date(2000+number, 1, 1, 1, 1, 1, number*1000, time.UTC))
	},
	reflect.TypeFor[*intstr.IntOrString](): func(name string, _ int, field any) {
		*field.(*intstr.IntOrString) = intstr.FromString(name + "Value")
	},
	reflect.TypeFor[*resource.Quantity](): func(_ string, number int, field any) {
		*field.(*resource.Quantity) = *resource.NewQuantity(int64(number), resource.DecimalSI)
	},
	reflect.TypeFor[*runtime.RawExtension](): func(name string, _ int, field any) {
		field.(*runtime.RawExtension).Raw = []byte(`{"` + name + `":[null,1.5,true]}`)
	},
	reflect.TypeFor[*metav1.FieldsV1](): func(name string, _ int, field any) {
		field.(*metav1.FieldsV1).Raw = []byte(`{"f:` + name + `":{}}`)
	},
}

var oddTime = metav1.NewTime(time.Date(1969, 12, 31, 23, 59, 58, 999, time.UTC))

func oddObjects() map[string]runtime.Object {
	typed := func(version schema.GroupVersion, kind string) metav1.TypeMeta {
		return metav1.TypeMeta{APIVersion: version.String(), Kind: kind}
	}
	yes, no, zero, negative, empty := true, false, int32(0), int64(-1), ""
	number, percent := intstr.FromInt32(-2), intstr.FromString("25%")
	cpu := corev1.ResourceList{"cpu": resource.MustParse("0.25"), "example.com/gpu": resource.MustParse("-1"), "memory": resource.MustParse("1.5Gi")}
	micro := metav1.NewMicroTime(time.Date(2026, 7, 1, 12, 0, 0, 1234000, time.UTC))
	wholeSecond := metav1.NewMicroTime(time.Date(2262, 4, 11, 23, 47, 16, 0, time.UTC))
	return map[string]runtime.Object{
		"ConfigMap with bytes": &corev1.ConfigMap{
			TypeMeta: typed(corev1.SchemeGroupVersion, "ConfigMap"), Immutable: &no,
			Data:       map[string]string{"b": "\u00e4\x00<\"", "a": "", "": "no key"},
			BinaryData: map[string][]byte{"z": {0, 255}, "y": {}},
		},
		"Pod with numbers": &corev1.Pod{
			TypeMeta: typed(corev1.SchemeGroupVersion, "Pod"),
			ObjectMeta: metav1.ObjectMeta{
				Name: "p", CreationTimestamp: oddTime, DeletionTimestamp: &oddTime, DeletionGracePeriodSeconds: &negative, Finalizers: []string{"", "a/b"},
				ManagedFields: []metav1.ManagedFieldsEntry{{FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:metadata":{"f:name":{},"f:z":[1,2.5,"ä"]}}`)}}, {}},
			},
			Spec: corev1.PodSpec{
				Containers: []corev1.Container{{
					Resources: corev1.ResourceRequirements{Limits: cpu}, Ports: []corev1.ContainerPort{{ContainerPort: -1}},
					LivenessProbe:   &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: percent}}, InitialDelaySeconds: -7},
					Env:             []corev1.EnvVar{{ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{}}}},
					SecurityContext: &corev1.SecurityContext{Privileged: &no, ReadOnlyRootFilesystem: &yes, RunAsUser: &negative},
				}, {}},
				Volumes:         []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
				SecurityContext: &corev1.PodSecurityContext{SupplementalGroups: []int64{0, -1, 1 << 40}},
				Subdomain:       "s",
			},
		},
		"Deployment of none": &appsv1.Deployment{
			TypeMeta: typed(appsv1.SchemeGroupVersion, "Deployment"),
			Spec: appsv1.DeploymentSpec{
				Replicas: &zero,
				Strategy: appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &percent, MaxUnavailable: &number}},
			},
		},
		"Lease with times": &coordinationv1.Lease{
			TypeMeta: typed(coordinationv1.SchemeGroupVersion, "Lease"),
			Spec:     coordinationv1.LeaseSpec{HolderIdentity: &empty, AcquireTime: &wholeSecond, RenewTime: &micro, LeaseTransitions: &zero},
		},
		"ClusterRole": &rbacv1.ClusterRole{
			TypeMeta: typed(rbacv1.SchemeGroupVersion, "ClusterRole"), Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}}},
			AggregationRule: &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"k": ""}}}},
		},
		"ConfigMapList": &corev1.ConfigMapList{
			TypeMeta: typed(corev1.SchemeGroupVersion, "ConfigMapList"), ListMeta: listMeta(),
			Items: []corev1.ConfigMap{{ObjectMeta: meta("a")}, {Data: map[string]string{"k": "v"}}},
		},
		"PartialObjectMetadata": partialMetadata("a"),
		"PartialObjectMetadataList": &metav1.PartialObjectMetadataList{
			TypeMeta: typed(metav1.SchemeGroupVersion, "PartialObjectMetadataList"), ListMeta: listMeta(),
			Items: []metav1.PartialObjectMetadata{{ObjectMeta: meta("a")}, {}},
		},
	}
}
