// Package node is a fake kubelet for exec, attach, port-forward and logs of pods that do not run.
//
// The API server connects to it as to any node, so the streams between a client and the "container" take the same path
// as in a real cluster. A few lines here implement the container.
package node

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	"ctrlmesh.kusionstack.io/e2e/cluster"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

const (
	// Container is the name of the only container of a pod made by CreatePod.
	Container = "main"
	// LogLines is the number of lines of a followed log, one every logInterval.
	LogLines    = 5
	logInterval = 100 * time.Millisecond
	// Both values are kubelet's.
	idleTimeout     = 4 * time.Hour
	creationTimeout = 30 * time.Second
)

// Node is a registered node that serves the kubelet's API.
type Node struct {
	Name   string
	client kubernetes.Interface
	server *http.Server
}

// Start serves and registers a node.
func Start(ctx context.Context, c *cluster.Cluster, client kubernetes.Interface, name string) (*Node, error) {
	pair, err := c.CA.IssueServing(name)
	if err != nil {
		return nil, err
	}
	certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	n := &Node{Name: name, client: client}
	n.server = &http.Server{
		Handler: n.handler(), TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}},
		ErrorLog: log.New(io.Discard, "", 0), // a reset stream is not an error here
	}
	go func() { _ = n.server.ServeTLS(listener, "", "") }() // returns when Close is called
	port := listener.Addr().(*net.TCPAddr).Port
	node := &core.Node{ObjectMeta: meta.ObjectMeta{Name: name}}
	if node, err = client.CoreV1().Nodes().Create(ctx, node, meta.CreateOptions{}); err != nil {
		return nil, err
	}
	node.Status.Addresses = []core.NodeAddress{{Type: core.NodeInternalIP, Address: "127.0.0.1"}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
	_, err = client.CoreV1().Nodes().UpdateStatus(ctx, node, meta.UpdateOptions{})
	return n, err
}

// Close stops the server and all its streams.
func (n *Node) Close() error { return n.server.Close() }

// CreatePod creates a pod whose status says that it runs on the node.
func (n *Node) CreatePod(ctx context.Context, namespace, name string) error {
	pod := &core.Pod{
		ObjectMeta: meta.ObjectMeta{Name: name},
		Spec: core.PodSpec{
			NodeName:   n.Name,
			Containers: []core.Container{{Name: Container, Image: "none", Stdin: true}},
		},
	}
	pod, err := n.client.CoreV1().Pods(namespace).Create(ctx, pod, meta.CreateOptions{})
	if err != nil {
		return err
	}
	pod.Status.Phase = core.PodRunning
	pod.Status.ContainerStatuses = []core.ContainerStatus{{Name: Container, Ready: true, State: core.ContainerState{Running: &core.ContainerStateRunning{}}}}
	_, err = n.client.CoreV1().Pods(namespace).UpdateStatus(ctx, pod, meta.UpdateOptions{})
	return err
}

// handler serves the kubelet's paths.
func (n *Node) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		options, err := remotecommand.NewOptions(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		remotecommand.ServeExec(w, r, echoContainer{}, r.PathValue("pod"), "", r.PathValue("container"), r.URL.Query()["command"],
			options, idleTimeout, creationTimeout, remotecommand.SupportedStreamingProtocols)
	})
	mux.HandleFunc("/attach/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		options, err := remotecommand.NewOptions(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		remotecommand.ServeAttach(w, r, echoContainer{}, r.PathValue("pod"), "", r.PathValue("container"),
			options, idleTimeout, creationTimeout, remotecommand.SupportedStreamingProtocols)
	})
	mux.HandleFunc("/portForward/{namespace}/{pod}", func(w http.ResponseWriter, r *http.Request) {
		options, err := portforward.NewV4Options(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		portforward.ServePortForward(w, r, echoContainer{}, r.PathValue("pod"), "", options, idleTimeout, creationTimeout, portforward.SupportedProtocols)
	})
	mux.HandleFunc("/containerLogs/{namespace}/{pod}/{container}", serveLog)
	return mux
}

// serveLog writes a followed log slowly, and flushes each line.
func serveLog(w http.ResponseWriter, r *http.Request) {
	w.WriteHeader(http.StatusOK)
	for i := range LogLines {
		fmt.Fprintf(w, "line %d\n", i)
		if r.URL.Query().Get("follow") != "true" {
			continue
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
		select {
		case <-time.After(logInterval):
		case <-r.Context().Done():
			return
		}
	}
}

// echoContainer runs in all pods: a command prints itself and then its input, attach echoes lines in upper case, and
// each port sends back one line with its number.
type echoContainer struct{}

func (echoContainer) ExecInContainer(_ context.Context, _, _, _ string, command []string, in io.Reader, out, errs io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	fmt.Fprintln(out, strings.Join(command, " "))
	if errs != nil {
		fmt.Fprintln(errs, "to stderr")
	}
	if in == nil {
		return nil
	}
	_, err := io.Copy(out, in)
	return err
}

func (echoContainer) AttachContainer(_ context.Context, _, _, _ string, in io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		fmt.Fprintln(out, strings.ToUpper(lines.Text()))
	}
	return lines.Err()
}

func (echoContainer) PortForward(_ context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	line, err := bufio.NewReader(stream).ReadString('\n')
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stream, "%d: %s", port, line)
	return err
}
