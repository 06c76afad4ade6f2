package realnode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	testNamespace = "demo"
	// unassignedAddress is an address that nobody has (TEST-NET-3, RFC 5737).
	unassignedAddress = "203.0.113.9"
	// projectionLimit distinguishes a volume that syncs at once from one that waits for kubelet's period of a minute.
	projectionLimit = 30 * time.Second
	bumpPeriod      = 3 * time.Second
)

// TestRealNodeDoesWhatTestsRelyOn checks pods, volume syncs, privileged init containers, Services, DNS and logs.
func TestRealNodeDoesWhatTestsRelyOn(t *testing.T) {
	n := StartForTest(t, Options{})
	if _, err := n.Kubectl(t.Context(), testManifest, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	applied := time.Now()
	kubectl(t, n, "rollout", "status", "statefulset/web", "--timeout=90s")
	t.Logf("a StatefulSet had 2 of 2 pods ready after %s", time.Since(applied).Round(10*time.Millisecond))
	for name, test := range map[string]func(*testing.T, *Node){
		"volume_is_synced_after_annotation": testVolumeSync,
		"net_admin":                         testNetAdmin,
		"without_net_admin":                 testWithoutNetAdmin,
		"service":                           testService,
		"names":                             testNames,
		"api_from_pod":                      testAPIFromPod,
		"logs":                              testLogs,
		"image_with_libraries":              testImageWithLibraries,
	} {
		if !t.Run(name, func(t *testing.T) { test(t, n) }) {
			t.Log(n.Logs(2048))
		}
	}
}

// testManifest is as restricted as the project's own pods, except for the init container that sets rules.
const testManifest = `
apiVersion: v1
kind: Namespace
metadata: {name: demo}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: demo}
data: {value: first}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: demo}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: pods, namespace: demo}
spec: {clusterIP: None, selector: {app: web}, ports: [{port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: nobody, namespace: demo}
spec: {selector: {app: nobody}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web, namespace: demo}
spec:
  serviceName: pods
  replicas: 2
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      initContainers:
      - name: rules
        image: ` + WorkloadImage + `
        args: [redirect, ` + unassignedAddress + `, "8080"]
        securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL], add: [NET_ADMIN]}}
      containers:
      - name: main
        image: ` + WorkloadImage + `
        args: [serve, ":8080"]
        readinessProbe: {httpGet: {port: 8080}, periodSeconds: 1}
        volumeMounts: [{name: settings, mountPath: /settings}]
        securityContext:
          runAsNonRoot: true
          runAsUser: 1359
          readOnlyRootFilesystem: true
          allowPrivilegeEscalation: false
          capabilities: {drop: [ALL]}
          seccompProfile: {type: RuntimeDefault}
      volumes: [{name: settings, configMap: {name: settings}}]
`

// testVolumeSync: a changed ConfigMap is in the pod once kubelet syncs the pod, which a changed annotation triggers.
func testVolumeSync(t *testing.T, n *Node) {
	pod := must(n.Client.CoreV1().Pods(testNamespace).Get(t.Context(), "web-0", meta.GetOptions{}))(t)
	url := "http://" + pod.Status.PodIP + ":8080/file?path=/settings/value"
	for _, value := range []string{"second", "third", "fourth"} {
		begin := time.Now()
		patch := []byte(`{"data":{"value":"` + value + `"}}`)
		must(n.Client.CoreV1().ConfigMaps(testNamespace).Patch(t.Context(), "settings", types.MergePatchType, patch, meta.PatchOptions{}))(t)
		var bumped time.Time
		waitForCondition(t, projectionLimit, "the pod sees "+value, func() bool {
			// Kubelet may have synced before its own watch reported the ConfigMap.
			if time.Since(bumped) > bumpPeriod {
				bumped = time.Now()
				patch := fmt.Sprintf(`{"metadata":{"annotations":{"bump":"%s %s"}}}`, value, bumped)
				must(n.Client.CoreV1().Pods(testNamespace).Patch(t.Context(), "web-0", types.MergePatchType, []byte(patch), meta.PatchOptions{}))(t)
			}
			return getFromNode(t, n, url) == value
		})
		t.Logf("a changed ConfigMap was in the pod after %s", time.Since(begin).Round(10*time.Millisecond))
	}
}

// testNetAdmin: the init container's rule redirects the pod's traffic to itself.
func testNetAdmin(t *testing.T, n *Node) {
	if got := runInPod(t, n, "get", "http://"+unassignedAddress+"/"); got != "web-0" {
		t.Errorf("%s is answered by %q", unassignedAddress, got)
	}
}

// testWithoutNetAdmin: a container without the capability can't set the same rule.
func testWithoutNetAdmin(t *testing.T, n *Node) {
	pod := &core.Pod{
		ObjectMeta: meta.ObjectMeta{Name: "unprivileged"},
		Spec: core.PodSpec{RestartPolicy: core.RestartPolicyNever, Containers: []core.Container{
			{Name: "rules", Image: WorkloadImage, Args: []string{"redirect", unassignedAddress, "8080"}},
		}},
	}
	runToPhase(t, n, pod, core.PodFailed)
	if log := must(n.PodLog(t.Context(), testNamespace, pod.Name, ""))(t); !strings.Contains(log, "operation not permitted") {
		t.Errorf("the container logs %q", log)
	}
}

// testService: pods and the node (like the API server's webhooks) reach all pods of a Service, and are rejected by a
// Service without pods.
func testService(t *testing.T, n *Node) {
	get := func(name string) string {
		return must(n.Client.CoreV1().Services(testNamespace).Get(t.Context(), name, meta.GetOptions{}))(t).Spec.ClusterIP
	}
	url := "http://" + get("web") + "/"
	fromPod, fromNode := map[string]bool{}, map[string]bool{}
	waitForCondition(t, time.Minute, "both pods answered both", func() bool {
		fromPod[runInPod(t, n, "get", url)] = true
		fromNode[getFromNode(t, n, url)] = true
		return fromPod["web-0"] && fromPod["web-1"] && fromNode["web-0"] && fromNode["web-1"]
	})
	connection, err := n.Dial(t.Context(), "tcp", net.JoinHostPort(get("nobody"), "80"))
	if err == nil {
		connection.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a Service without pods: %v", err)
	}
}

// testNames resolves names of Services and pods in a pod.
func testNames(t *testing.T, n *Node) {
	address := func(pod string) string {
		return must(n.Client.CoreV1().Pods(testNamespace).Get(t.Context(), pod, meta.GetOptions{}))(t).Status.PodIP
	}
	first, second := address("web-0"), address("web-1")
	both := []string{first, second}
	slices.Sort(both)
	web := must(n.Client.CoreV1().Services(testNamespace).Get(t.Context(), "web", meta.GetOptions{}))(t)
	for name, want := range map[string]string{
		"web":                                  web.Spec.ClusterIP,
		"web.demo.svc.cluster.local.":          web.Spec.ClusterIP,
		"pods.demo":                            strings.Join(both, " "),
		"web-1.pods":                           second,
		"kubernetes.default.svc.cluster.local": "10.96.0.1",
	} {
		// A name is known after the EndpointSlice has the pod, which is after the pod is ready.
		waitForCondition(t, time.Minute, name+" is "+want, func() bool {
			got, err := n.Exec(t.Context(), testNamespace, "web-0", "main", "/workload", "lookup", name)
			return err == nil && strings.TrimSpace(got) == want
		})
	}
	for _, name := range []string{"nowhere", "web-2.pods", "example.com"} {
		output, err := n.Exec(t.Context(), testNamespace, "web-0", "main", "/workload", "lookup", name)
		if err == nil || !strings.Contains(err.Error(), "no such host") {
			t.Errorf("%s is %q, %v", name, output, err)
		}
	}
}

// testAPIFromPod: a pod finds the API server as every in-cluster client does.
func testAPIFromPod(t *testing.T, n *Node) {
	if got := runInPod(t, n, "api", "/version"); !strings.Contains(got, `"gitVersion"`) {
		t.Errorf("the API server responds %q", got)
	}
}

func testLogs(t *testing.T, n *Node) {
	if log := must(n.PodLog(t.Context(), testNamespace, "web-1", "main"))(t); log != "serving on :8080\n" {
		t.Errorf("the log is %q", log)
	}
}

// testImageWithLibraries runs a dynamically linked program: pid1, which the node itself needs.
func testImageWithLibraries(t *testing.T, n *Node) {
	archive := n.path("linked.tar")
	image := Image{
		Name: "localhost/ctrlmesh-e2e/linked:1", User: "1359", Entrypoint: []string{"/bin/runc", "--version"},
		Files: map[string]string{"/bin/runc": n.programs["runc"]},
	}
	image = must(image.WithLibraries(t.Context()))(t)
	if err := errors.Join(image.Write(archive), n.LoadImage(t.Context(), archive)); err != nil {
		t.Fatal(err)
	}
	pod := &core.Pod{
		ObjectMeta: meta.ObjectMeta{Name: "linked"},
		Spec:       core.PodSpec{RestartPolicy: core.RestartPolicyNever, Containers: []core.Container{{Name: "main", Image: image.Name}}},
	}
	runToPhase(t, n, pod, core.PodSucceeded)
	if log := must(n.PodLog(t.Context(), testNamespace, pod.Name, ""))(t); !strings.HasPrefix(log, "runc version ") {
		t.Errorf("the program prints %q", log)
	}
}

// runToPhase creates a pod and waits until it reaches a final phase.
func runToPhase(t *testing.T, n *Node, pod *core.Pod, phase core.PodPhase) {
	t.Helper()
	pods := n.Client.CoreV1().Pods(testNamespace)
	must(pods.Create(t.Context(), pod, meta.CreateOptions{}))(t)
	var last core.PodStatus
	waitForCondition(t, time.Minute, "the pod "+pod.Name+" has ended", func() bool {
		last = must(pods.Get(t.Context(), pod.Name, meta.GetOptions{}))(t).Status
		return last.Phase == core.PodSucceeded || last.Phase == core.PodFailed
	})
	if last.Phase != phase {
		t.Fatalf("pod %s is %s, not %s: %+v", pod.Name, last.Phase, phase, last.ContainerStatuses)
	}
}

// runInPod runs the workload program in the first pod.
func runInPod(t *testing.T, n *Node, args ...string) string {
	t.Helper()
	output := must(n.Exec(t.Context(), testNamespace, "web-0", "main", append([]string{"/workload"}, args...)...))(t)
	return strings.TrimSpace(output)
}

// getFromNode sends a request from the node's network, outside of all pods.
func getFromNode(t *testing.T, n *Node, url string) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: n.Dial, DisableKeepAlives: true}, Timeout: 10 * time.Second}
	response := must(client.Get(url))(t)
	defer response.Body.Close()
	return strings.TrimSpace(string(must(io.ReadAll(response.Body))(t)))
}

func kubectl(t *testing.T, n *Node, args ...string) {
	t.Helper()
	if _, err := n.Kubectl(t.Context(), "", append([]string{"-n", testNamespace}, args...)...); err != nil {
		pods, _ := n.Kubectl(context.WithoutCancel(t.Context()), "", "-n", testNamespace, "describe", "pods")
		t.Fatalf("%v\n%s", err, pods)
	}
}
