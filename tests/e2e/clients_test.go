package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/cluster"
	"ctrlmesh.kusionstack.io/e2e/sidecar"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"
)

// This file uses client-go as operators do: over plain HTTP/1.1 and over TLS (where it speaks HTTP/2), in JSON and in
// protobuf.

func TestClientGoSeesOnlyShard(t *testing.T) {
	authority := must(cluster.NewAuthority("sidecar"))(t)
	chain := shardChain(t, 1, shardRule("s0", "a"))
	s := startSidecar(t, sidecar.Options{Chain: &chain, TLSDir: servingDir(t, authority)})
	namespace := newNamespace(t)
	seedNamespace(t, namespace)
	secure := clientConfig(s)
	secure.Host = "https://" + s.API
	secure.TLSClientConfig = rest.TLSClientConfig{CAData: authority.PEM}
	for name, config := range map[string]*rest.Config{"http": clientConfig(s), "tls": secure} {
		for _, content := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
			config := rest.CopyConfig(config)
			config.ContentType, config.AcceptContentTypes = content, content
			t.Run(name+"_"+strings.TrimPrefix(content, "application/"), func(t *testing.T) {
				t.Parallel()
				client := must(kubernetes.NewForConfig(config))(t)
				t.Run("verbs_affect_only_shard", func(t *testing.T) { testTypedVerbs(t, client) })
				t.Run("pages_contain_only_shard", func(t *testing.T) { testPages(t, client, namespace) })
				t.Run("informer_holds_shard", func(t *testing.T) {
					factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
					assertInformerHoldsShard(t, factory.Core().V1().ConfigMaps().Informer())
				})
			})
		}
		t.Run(name+"_dynamic_informer", func(t *testing.T) {
			t.Parallel()
			client := must(dynamic.NewForConfig(config))(t)
			factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(client, 0, namespace, nil)
			assertInformerHoldsShard(t, factory.ForResource(widgetResource).Informer())
		})
		t.Run(name+"_metadata_informer", func(t *testing.T) {
			t.Parallel()
			client := must(metadata.NewForConfig(config))(t)
			factory := metadatainformer.NewFilteredSharedInformerFactory(client, 0, namespace, nil)
			assertInformerHoldsShard(t, factory.ForResource(widgetResource).Informer())
			assertInformerHoldsShard(t, factory.ForResource(core.SchemeGroupVersion.WithResource("configmaps")).Informer())
		})
	}
}

// servingDir returns a directory with a serving certificate for the sidecar.
func servingDir(t *testing.T, authority *cluster.Authority) string {
	t.Helper()
	dir := newDir(t)
	pair := must(authority.IssueServing("sidecar"))(t)
	check(t, os.WriteFile(filepath.Join(dir, "tls.crt"), pair.Cert, 0o600))
	check(t, os.WriteFile(filepath.Join(dir, "tls.key"), pair.Key, 0o600))
	return dir
}

// testTypedVerbs creates, reads, updates, patches and deletes an object in a new namespace.
func testTypedVerbs(t *testing.T, client kubernetes.Interface) {
	ctx, namespace := t.Context(), newNamespace(t)
	configMaps := client.CoreV1().ConfigMaps(namespace)
	stream := must(configMaps.Watch(ctx, meta.ListOptions{}))(t)
	defer stream.Stop()
	object := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: "mine", Labels: map[string]string{"shard": "a"}}, BinaryData: map[string][]byte{"b": {0, 1, 255}}}
	created := must(configMaps.Create(ctx, object, meta.CreateOptions{}))(t)
	created.Data = map[string]string{"k": "ü\x00"}
	updated := must(configMaps.Update(ctx, created, meta.UpdateOptions{}))(t)
	patched := must(configMaps.Patch(ctx, "mine", types.StrategicMergePatchType, []byte(`{"data":{"l":"m"}}`), meta.PatchOptions{}))(t)
	got := must(configMaps.Get(ctx, "mine", meta.GetOptions{}))(t)
	if got.ResourceVersion != patched.ResourceVersion || updated.ResourceVersion == patched.ResourceVersion || got.Data["k"] != "ü\x00" || string(got.BinaryData["b"]) != "\x00\x01\xff" {
		t.Errorf("got %+v after %+v", got, patched)
	}
	createConfigMap(t, namespace, "foreign", nil, nil)
	check(t, configMaps.DeleteCollection(ctx, meta.DeleteOptions{}, meta.ListOptions{}))
	for _, want := range []watch.EventType{watch.Added, watch.Modified, watch.Modified, watch.Deleted} {
		if event := <-stream.ResultChan(); event.Type != want || event.Object.(*core.ConfigMap).Name != "mine" {
			t.Errorf("event %s %v, want %s", event.Type, event.Object, want)
		}
	}
	if left := configMapNames(t, namespace); !slices.Equal(left, []string{"foreign"}) {
		t.Errorf("%v are left", left)
	}
}

func testPages(t *testing.T, client kubernetes.Interface, namespace string) {
	found := []string{}
	p := pager.New(func(ctx context.Context, options meta.ListOptions) (runtime.Object, error) {
		list, err := client.CoreV1().ConfigMaps(namespace).List(ctx, options)
		// With a selector the API server does not say how many items are left (ListMeta.RemainingItemCount).
		if err == nil && list.RemainingItemCount != nil {
			t.Errorf("a page says that %d items are left", *list.RemainingItemCount)
		}
		return list, err
	})
	p.PageSize = 1
	check(t, p.EachListItem(t.Context(), meta.ListOptions{}, func(item runtime.Object) error {
		found = append(found, item.(*core.ConfigMap).Name)
		return nil
	}))
	if !slices.Equal(found, []string{"mine-x", "mine-y"}) {
		t.Errorf("the pages contain %v", found)
	}
}

// assertInformerHoldsShard runs an informer (it streams its initial list) and asserts exactly the shard's seeded
// objects.
func assertInformerHoldsShard(t *testing.T, informer cache.SharedIndexInformer) {
	t.Helper()
	go informer.Run(t.Context().Done())
	eventually(t, "the informer holds the shard", func() error {
		keys := informer.GetStore().ListKeys()
		slices.Sort(keys)
		if !informer.HasSynced() || len(keys) != 2 || !strings.HasSuffix(keys[0], "/mine-x") || !strings.HasSuffix(keys[1], "/mine-y") {
			return fmt.Errorf("the informer holds %v", keys)
		}
		return nil
	})
}
