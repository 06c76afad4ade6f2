package main

import (
	"iter"
	"maps"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// sampleObjects make an object that has the name wherever it is to be renamed, and "lock" everywhere else.
var sampleObjects = map[string]func(name string) runtime.Object{
	"Lease": func(name string) runtime.Object { return lease(name) },
	"LeaseList": func(name string) runtime.Object {
		item := func(name string) coordinationv1.Lease {
			item := *lease(name)
			item.TypeMeta = metav1.TypeMeta{}
			return item
		}
		return &coordinationv1.LeaseList{
			TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "LeaseList"}, ListMeta: listMeta(),
			Items: []coordinationv1.Lease{item(name), item("lock2"), item(name)},
		}
	},
	"ConfigMap": func(name string) runtime.Object {
		return &corev1.ConfigMap{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: meta(name), Data: map[string]string{"name": from},
		}
	},
	"PartialObjectMetadata": func(name string) runtime.Object { return partialMetadata(name) },
	"PartialObjectMetadataList": func(name string) runtime.Object {
		return &metav1.PartialObjectMetadataList{
			TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"}, ListMeta: listMeta(),
			Items: []metav1.PartialObjectMetadata{*partialMetadata("other"), *partialMetadata(name)},
		}
	},
	"Status": func(name string) runtime.Object { return status(name) },
	"Table":  func(name string) runtime.Object { return table(name) },
	"DeleteOptions": func(string) runtime.Object {
		uid, seconds := from, int64(5)
		return &metav1.DeleteOptions{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}, GracePeriodSeconds: &seconds, DryRun: []string{from},
			Preconditions: &metav1.Preconditions{ResourceVersion: &uid},
		}
	},
	"core Event":             func(name string) runtime.Object { return coreEvent("Lease", name) },
	"core Event about a Pod": func(string) runtime.Object { return coreEvent("Pod", from) },
	"core EventList": func(name string) runtime.Object {
		return &corev1.EventList{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "EventList"}, ListMeta: listMeta(),
			Items: []corev1.Event{*untyped(coreEvent("ConfigMap", name)), *untyped(coreEvent("Pod", from))},
		}
	},
	"events Event": func(name string) runtime.Object { return event("Endpoints", name) },
	"events EventList": func(name string) runtime.Object {
		item := *event("Lease", name)
		item.TypeMeta = metav1.TypeMeta{}
		return &eventsv1.EventList{
			TypeMeta: metav1.TypeMeta{APIVersion: "events.k8s.io/v1", Kind: "EventList"}, ListMeta: listMeta(), Items: []eventsv1.Event{item},
		}
	},
}

// ordered iterates over a map in the order of its keys, so that the files are the same each time.
func ordered[V any](samples map[string]V) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, key := range slices.Sorted(maps.Keys(samples)) {
			if !yield(key, samples[key]) {
				return
			}
		}
	}
}

func coreEvent(kind, name string) *corev1.Event {
	return &corev1.Event{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}, ObjectMeta: meta("lock.17c0ffee"),
		InvolvedObject: corev1.ObjectReference{Kind: kind, Namespace: from, Name: name, UID: "u", APIVersion: "v1", FieldPath: from},
		Reason:         from, Message: "\"" + from + "\" became leader", Source: corev1.EventSource{Component: from}, Type: "Normal", Count: 1,
		Related: &corev1.ObjectReference{Kind: "Pod", Name: from}, ReportingController: from,
	}
}

func untyped(event *corev1.Event) *corev1.Event {
	event.TypeMeta = metav1.TypeMeta{}
	return event
}

func event(kind, name string) *eventsv1.Event {
	return &eventsv1.Event{
		TypeMeta: metav1.TypeMeta{APIVersion: "events.k8s.io/v1", Kind: "Event"}, ObjectMeta: meta("lock.17c0ffee"),
		Regarding: corev1.ObjectReference{Kind: kind, Namespace: from, Name: name, APIVersion: "v1"}, Reason: from, Note: "\"" + from + "\"",
		Action: from, ReportingController: from, Type: "Normal",
	}
}
