package main

import (
	"context"
	"fmt"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// reconciler handles each requested step of an object: it creates one child per step and then records the step as
// observed.
//
// The child stands for an effect on the outside world. Its name follows from object and step, so a second replica that
// handles the step finds it and records "twice".
type reconciler struct {
	client    client.Client
	apiReader client.Reader
	kind      string
	journal   *journalWriter
}

func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	object := newObject(r.kind)
	if err := r.client.Get(ctx, request.NamespacedName, object); err != nil {
		if errors.IsNotFound(err) {
			r.journal.write(record{Event: "gone", Object: request.String()})
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, err
	}
	step, observed := stepsOf(object)
	if step == "" || step == observed {
		return ctrl.Result{}, nil
	}
	if err := r.makeChild(ctx, request, step); err != nil {
		return ctrl.Result{}, err
	}
	err := r.recordObserved(ctx, object, step)
	switch {
	case errors.IsConflict(err):
		return ctrl.Result{Requeue: true}, nil // the cache is stale, which is normal
	case errors.IsNotFound(err):
		return ctrl.Result{}, nil
	case err != nil:
		return ctrl.Result{}, err
	}
	r.journal.write(record{Event: "handled", Object: request.String(), Step: step})
	return ctrl.Result{}, nil
}

// makeChild leaves a child of another replica alone, and records "twice".
func (r *reconciler) makeChild(ctx context.Context, request ctrl.Request, step string) error {
	child := &core.ConfigMap{
		ObjectMeta: meta.ObjectMeta{Namespace: request.Namespace, Name: fmt.Sprintf("%s-step-%s", request.Name, step)},
		Data:       map[string]string{"by": r.journal.id},
	}
	err := r.client.Create(ctx, child)
	if !errors.IsAlreadyExists(err) {
		return err
	}
	present := &core.ConfigMap{}
	if err := r.apiReader.Get(ctx, client.ObjectKeyFromObject(child), present); err != nil {
		return err
	}
	if by := present.Data["by"]; by != r.journal.id {
		r.journal.write(record{Event: "twice", Object: request.String(), Step: step, Detail: "first handled by " + by})
	}
	return nil
}

// stepsOf returns the requested step of an object and the last one that was handled.
func stepsOf(object client.Object) (step, observed string) {
	switch o := object.(type) {
	case *core.ConfigMap:
		return o.Data["step"], o.Data["observed"]
	case *unstructured.Unstructured:
		step, _, _ = unstructured.NestedString(o.Object, "spec", "step")
		observed, _, _ = unstructured.NestedString(o.Object, "status", "observed")
	}
	return step, observed
}

// recordStep writes the observed step, with the resource version that was read as a precondition.
func (r *reconciler) recordObserved(ctx context.Context, object client.Object, step string) error {
	switch o := object.(type) {
	case *core.ConfigMap:
		o.Data["observed"], o.Data["by"] = step, r.journal.id
		return r.client.Update(ctx, o)
	case *unstructured.Unstructured:
		status := map[string]any{"observed": step, "by": r.journal.id}
		if err := unstructured.SetNestedMap(o.Object, status, "status"); err != nil {
			return err
		}
		return r.client.Status().Update(ctx, o)
	}
	return fmt.Errorf("kind %T is not supported", object)
}
