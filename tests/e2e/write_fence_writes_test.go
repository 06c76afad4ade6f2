package e2e

import (
	"context"
	"fmt"
	"slices"

	apps "k8s.io/api/apps/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	appsapply "k8s.io/client-go/applyconfigurations/apps/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

// This file lists the ways to write an object by its name, for write_fence_test.go.

// fencedWrite is one way to write an object.
type fencedWrite struct {
	name string
	// write gets a copy of the object.
	write func(context.Context, *unstructured.Unstructured) error
	// request is the write in the audit log: its verb, and its subresource behind a slash.
	request string
	// hasUID: the request says which object it is for, so that the sidecar need not ask with the key `uid`.
	hasUID bool
	// isDone says whether an object was written. It is nil if there is none any more.
	isDone func(*unstructured.Unstructured) bool
	// prepare changes a new object without a sidecar; nil leaves it as it is.
	prepare func(context.Context, dynamic.ResourceInterface, *unstructured.Unstructured) error
}

// requests returns the requests at the API server when the object is in the shard, or outside.
func (w fencedWrite) requests(isOwn bool) []string {
	requests := []string{}
	if !w.hasUID {
		requests = append(requests, "get")
	}
	if isOwn {
		requests = append(requests, w.request)
	}
	return requests
}

// fencedClient is a client of one kind.
type fencedClient interface {
	update(context.Context, *unstructured.Unstructured) error
	updateStatus(context.Context, *unstructured.Unstructured) error
	patch(ctx context.Context, object *unstructured.Unstructured, kind types.PatchType, patch string, subresources ...string) error
	delete(context.Context, *unstructured.Unstructured, meta.DeleteOptions) error
}

// patchOptions forces applies, which conflict with whoever created the object.
func patchOptions(kind types.PatchType) meta.PatchOptions {
	if kind != types.ApplyYAMLPatchType {
		return meta.PatchOptions{}
	}
	force := true
	return meta.PatchOptions{FieldManager: "e2e", Force: &force}
}

type dynamicClient struct {
	dynamic.NamespaceableResourceInterface
}

func (c dynamicClient) update(ctx context.Context, object *unstructured.Unstructured) error {
	_, err := c.Namespace(object.GetNamespace()).Update(ctx, object, meta.UpdateOptions{})
	return err
}

func (c dynamicClient) updateStatus(ctx context.Context, object *unstructured.Unstructured) error {
	_, err := c.Namespace(object.GetNamespace()).UpdateStatus(ctx, object, meta.UpdateOptions{})
	return err
}

func (c dynamicClient) patch(ctx context.Context, object *unstructured.Unstructured, kind types.PatchType, patch string, subresources ...string) error {
	_, err := c.Namespace(object.GetNamespace()).Patch(ctx, object.GetName(), kind, []byte(patch), patchOptions(kind), subresources...)
	return err
}

func (c dynamicClient) delete(ctx context.Context, object *unstructured.Unstructured, options meta.DeleteOptions) error {
	return c.Namespace(object.GetNamespace()).Delete(ctx, object.GetName(), options)
}

type deploymentClient struct {
	*kubernetes.Clientset
}

func toDeployment(object *unstructured.Unstructured) (*apps.Deployment, error) {
	deployment := &apps.Deployment{}
	return deployment, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, deployment)
}

func (c deploymentClient) update(ctx context.Context, object *unstructured.Unstructured) error {
	deployment, err := toDeployment(object)
	if err != nil {
		return err
	}
	_, err = c.AppsV1().Deployments(deployment.Namespace).Update(ctx, deployment, meta.UpdateOptions{})
	return err
}

func (c deploymentClient) updateStatus(ctx context.Context, object *unstructured.Unstructured) error {
	deployment, err := toDeployment(object)
	if err != nil {
		return err
	}
	_, err = c.AppsV1().Deployments(deployment.Namespace).UpdateStatus(ctx, deployment, meta.UpdateOptions{})
	return err
}

func (c deploymentClient) patch(ctx context.Context, object *unstructured.Unstructured, kind types.PatchType, patch string, subresources ...string) error {
	_, err := c.AppsV1().Deployments(object.GetNamespace()).Patch(ctx, object.GetName(), kind, []byte(patch), patchOptions(kind), subresources...)
	return err
}

func (c deploymentClient) delete(ctx context.Context, object *unstructured.Unstructured, options meta.DeleteOptions) error {
	return c.AppsV1().Deployments(object.GetNamespace()).Delete(ctx, object.GetName(), options)
}

// Most writes set the label `step`, or the number of replicas in the status or the specification.

const (
	stepPatch = `{"metadata":{"labels":{"step":"done"}}}`
	replicas  = 7
)

func hasStep(found *unstructured.Unstructured) bool {
	return found != nil && found.GetLabels()["step"] == "done"
}

func hasReplicas(section string) func(*unstructured.Unstructured) bool {
	return func(found *unstructured.Unstructured) bool {
		if found == nil {
			return false
		}
		number, _, err := unstructured.NestedInt64(found.Object, section, "replicas")
		return err == nil && number == replicas
	}
}

func isGone(found *unstructured.Unstructured) bool { return found == nil }

// waitsFor matches a deleted object that a finalizer keeps.
func waitsFor(finalizer string) func(*unstructured.Unstructured) bool {
	return func(found *unstructured.Unstructured) bool {
		return found != nil && found.GetDeletionTimestamp() != nil && slices.Contains(found.GetFinalizers(), finalizer)
	}
}

// writesOfAnyKind are those that clients of every kind with a status have.
func writesOfAnyKind(client fencedClient) []fencedWrite {
	patch := func(kind types.PatchType, text string, subresources ...string) func(context.Context, *unstructured.Unstructured) error {
		return func(ctx context.Context, object *unstructured.Unstructured) error {
			return client.patch(ctx, object, kind, text, subresources...)
		}
	}
	apply := func(format string) func(context.Context, *unstructured.Unstructured) error {
		return func(ctx context.Context, object *unstructured.Unstructured) error {
			text := fmt.Sprintf(format, object.GetAPIVersion(), object.GetKind(), object.GetName())
			return client.patch(ctx, object, types.ApplyYAMLPatchType, text)
		}
	}
	status := fmt.Sprintf(`{"status":{"replicas":%d}}`, replicas)
	return append([]fencedWrite{
		{name: "update", request: "update", hasUID: true, isDone: hasStep, write: func(ctx context.Context, object *unstructured.Unstructured) error {
			object.SetLabels(map[string]string{"step": "done"})
			return client.update(ctx, object)
		}},
		{name: "update_without_uid", request: "update", isDone: hasStep, write: func(ctx context.Context, object *unstructured.Unstructured) error {
			object.SetLabels(map[string]string{"step": "done"})
			object.SetUID("")
			return client.update(ctx, object)
		}},
		{name: "update_of_status", request: "update/status", hasUID: true, isDone: hasReplicas("status"), write: func(ctx context.Context, object *unstructured.Unstructured) error {
			if err := unstructured.SetNestedField(object.Object, int64(replicas), "status", "replicas"); err != nil {
				return err
			}
			return client.updateStatus(ctx, object)
		}},
		{
			name: "json_patch", request: "patch", isDone: hasStep,
			write: patch(types.JSONPatchType, `[{"op":"add","path":"/metadata/labels","value":{"step":"done"}}]`),
		},
		{name: "merge_patch", request: "patch", isDone: hasStep, write: patch(types.MergePatchType, stepPatch)},
		{name: "patch_of_status", request: "patch/status", isDone: hasReplicas("status"), write: patch(types.MergePatchType, status, "status")},
		{
			name: "apply_of_json", request: "patch", isDone: hasStep,
			write: apply(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q,"labels":{"step":"done"}}}`),
		},
		{
			name: writeOfYAML, request: "patch", isDone: hasStep,
			write: apply("apiVersion: %s\nkind: %s\nmetadata:\n  name: %s # a comment\n  labels: {step: done}\n"),
		},
		{
			name: "finalizer_removal", request: "patch", isDone: isGone,
			write: patch(types.MergePatchType, `{"metadata":{"finalizers":null}}`), prepare: deleteWithFinalizer,
		},
	}, deletes(client)...)
}

// writeOfYAML has a patch that is no JSON, as which the audit log writes patches.
const writeOfYAML = "apply_of_yaml"

// deleteWithFinalizer deletes an object so that it stays until somebody removes its finalizer.
func deleteWithFinalizer(ctx context.Context, objects dynamic.ResourceInterface, object *unstructured.Unstructured) error {
	patch := []byte(`{"metadata":{"finalizers":["e2e.ctrlmesh.dev/hold"]}}`)
	if _, err := objects.Patch(ctx, object.GetName(), types.MergePatchType, patch, meta.PatchOptions{}); err != nil {
		return err
	}
	return objects.Delete(ctx, object.GetName(), meta.DeleteOptions{})
}

func deletes(client fencedClient) []fencedWrite {
	remove := func(options meta.DeleteOptions) func(context.Context, *unstructured.Unstructured) error {
		return func(ctx context.Context, object *unstructured.Unstructured) error {
			return client.delete(ctx, object, options)
		}
	}
	background, foreground, orphan := meta.DeletePropagationBackground, meta.DeletePropagationForeground, meta.DeletePropagationOrphan
	seconds := int64(0)
	return []fencedWrite{
		{name: "delete", request: "delete", isDone: isGone, write: remove(meta.DeleteOptions{})},
		{name: "delete_at_once", request: "delete", isDone: isGone, write: remove(meta.DeleteOptions{GracePeriodSeconds: &seconds})},
		{name: "delete_in_background", request: "delete", isDone: isGone, write: remove(meta.DeleteOptions{PropagationPolicy: &background})},
		{
			name: "delete_in_foreground", request: "delete", isDone: waitsFor(meta.FinalizerDeleteDependents),
			write: remove(meta.DeleteOptions{PropagationPolicy: &foreground}),
		},
		{
			name: "delete_of_orphans_owner", request: "delete", isDone: waitsFor(meta.FinalizerOrphanDependents),
			write: remove(meta.DeleteOptions{PropagationPolicy: &orphan}),
		},
		{name: "delete_with_preconditions", request: "delete", isDone: isGone, write: func(ctx context.Context, object *unstructured.Unstructured) error {
			uid, version := object.GetUID(), object.GetResourceVersion()
			return client.delete(ctx, object, meta.DeleteOptions{Preconditions: &meta.Preconditions{UID: &uid, ResourceVersion: &version}})
		}},
		{name: "delete_with_version_as_precondition", request: "delete", isDone: isGone, write: func(ctx context.Context, object *unstructured.Unstructured) error {
			version := object.GetResourceVersion()
			return client.delete(ctx, object, meta.DeleteOptions{Preconditions: &meta.Preconditions{ResourceVersion: &version}})
		}},
	}
}

// deploymentWrites adds what only typed clients have, or only Deployments.
func deploymentWrites(client *kubernetes.Clientset) []fencedWrite {
	removal := func(parameters ...string) func(context.Context, *unstructured.Unstructured) error {
		return func(ctx context.Context, object *unstructured.Unstructured) error {
			request := client.AppsV1().RESTClient().Delete().Namespace(object.GetNamespace()).Resource("deployments").Name(object.GetName())
			for _, parameter := range parameters {
				request = request.Param("propagationPolicy", parameter)
			}
			return request.Do(ctx).Error()
		}
	}
	scale := fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas)
	return append(writesOfAnyKind(deploymentClient{client}), []fencedWrite{
		{name: "strategic_merge_patch", request: "patch", isDone: hasStep, write: func(ctx context.Context, object *unstructured.Unstructured) error {
			return deploymentClient{client}.patch(ctx, object, types.StrategicMergePatchType, stepPatch)
		}},
		{name: "apply_by_builder", request: "patch", isDone: hasStep, write: func(ctx context.Context, object *unstructured.Unstructured) error {
			applied := appsapply.Deployment(object.GetName(), object.GetNamespace()).WithLabels(map[string]string{"step": "done"})
			_, err := client.AppsV1().Deployments(object.GetNamespace()).Apply(ctx, applied, meta.ApplyOptions{FieldManager: "e2e", Force: true})
			return err
		}},
		{name: "update_of_scale", request: "update/scale", isDone: hasReplicas("spec"), write: func(ctx context.Context, object *unstructured.Unstructured) error {
			current, err := shared.client.AppsV1().Deployments(object.GetNamespace()).GetScale(ctx, object.GetName(), meta.GetOptions{})
			if err != nil {
				return err
			}
			current.UID = "" // so that the sidecar has to add it
			current.Spec.Replicas = replicas
			_, err = client.AppsV1().Deployments(object.GetNamespace()).UpdateScale(ctx, object.GetName(), current, meta.UpdateOptions{})
			return err
		}},
		{name: "patch_of_scale", request: "patch/scale", isDone: hasReplicas("spec"), write: func(ctx context.Context, object *unstructured.Unstructured) error {
			return deploymentClient{client}.patch(ctx, object, types.MergePatchType, scale, "scale")
		}},
		{name: "delete_without_body", request: "delete", isDone: isGone, write: removal()},
		{
			name: "delete_with_options_in_query", request: "delete", isDone: waitsFor(meta.FinalizerDeleteDependents),
			write: removal(string(meta.DeletePropagationForeground)),
		},
	}...)
}

// podWrites are evictions, with and without options.
func podWrites(client *kubernetes.Clientset) []fencedWrite {
	evict := func(options *meta.DeleteOptions) func(context.Context, *unstructured.Unstructured) error {
		return func(ctx context.Context, object *unstructured.Unstructured) error {
			eviction := &policy.Eviction{
				ObjectMeta:    meta.ObjectMeta{Namespace: object.GetNamespace(), Name: object.GetName()},
				DeleteOptions: options,
			}
			return client.CoreV1().Pods(object.GetNamespace()).EvictV1(ctx, eviction)
		}
	}
	seconds := int64(0)
	return []fencedWrite{
		{name: "eviction", request: "create/eviction", isDone: isGone, write: evict(nil)},
		{name: "eviction_with_options", request: "create/eviction", isDone: isGone, write: evict(&meta.DeleteOptions{GracePeriodSeconds: &seconds})},
		{name: "delete_of_pod", request: "delete", isDone: isGone, write: func(ctx context.Context, object *unstructured.Unstructured) error {
			return client.CoreV1().Pods(object.GetNamespace()).Delete(ctx, object.GetName(), meta.DeleteOptions{})
		}},
	}
}
