package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/node"
	core "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
)

// This file covers H99: streams between a client and a container, which are upgrades (SPDY and WebSocket) or endless
// bodies. The node package serves the kubelet's end.

func testStreamsToContainers(t *testing.T, env *testEnv) {
	n := must(node.Start(t.Context(), shared.cluster, shared.client, uniqueName("node")))(t)
	defer n.Close()
	check(t, n.CreatePod(t.Context(), env.namespace, "pod"))
	t.Run("exec_websocket", func(t *testing.T) { testExecStream(t, env, remotecommand.NewWebSocketExecutor, "") })
	t.Run("exec_spdy", func(t *testing.T) { testExecStream(t, env, nil, http.MethodPost) })
	t.Run("kubectl_exec", func(t *testing.T) {
		out := kubectlThroughSidecar(t, env.sidecar, "", "exec", "-n", env.namespace, "pod", "--", "echo", "hello world")
		if out != "echo hello world\n" {
			t.Errorf("got %q", out)
		}
	})
	t.Run("kubectl_attach", func(t *testing.T) {
		out := kubectlThroughSidecar(t, env.sidecar, "one\ntwo\n", "attach", "-q", "-i", "-n", env.namespace, "pod")
		if out != "ONE\nTWO\n" {
			t.Errorf("got %q", out)
		}
	})
	t.Run("followed_log_arrives_line_by_line", func(t *testing.T) { testFollowedLog(t, env) })
	t.Run("kubectl_port_forward", func(t *testing.T) { testPortForward(t, env) })
}

type newExecutor func(config *rest.Config, method, url string) (remotecommand.Executor, error)

// testExecStream sends more bytes through the stream and back than any buffer holds.
func testExecStream(t *testing.T, env *testEnv, websocket newExecutor, method string) {
	config := clientConfig(env.sidecar)
	config.Timeout = 0
	client := must(kubernetes.NewForConfig(config))(t)
	request := client.CoreV1().RESTClient().Post().Resource("pods").Namespace(env.namespace).Name("pod").SubResource("exec").
		VersionedParams(&core.PodExecOptions{Container: node.Container, Command: []string{"cat"}, Stdin: true, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	var executor remotecommand.Executor
	if websocket != nil {
		executor = must(websocket(config, http.MethodGet, request.URL().String()))(t)
	} else {
		executor = must(remotecommand.NewSPDYExecutor(config, method, request.URL()))(t)
	}
	input := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	var output, errs bytes.Buffer
	check(t, executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: bytes.NewReader(input), Stdout: &output, Stderr: &errs}))
	if want := append([]byte("cat\n"), input...); !bytes.Equal(output.Bytes(), want) {
		t.Errorf("%d bytes came back, want %d", output.Len(), len(want))
	}
	if errs.String() != "to stderr\n" {
		t.Errorf("stderr %q", errs.String())
	}
}

// testFollowedLog asserts that each line arrives when it is written, not all at the end.
func testFollowedLog(t *testing.T, env *testEnv) {
	path := "/api/v1/namespaces/" + env.namespace + "/pods/pod/log"
	assertPassesUnchanged(t, env, path)
	stream := must(env.proxied.Open(t.Context(), getRequest(path+"?follow=true")))(t)
	defer stream.Close()
	var first time.Time
	for i := range node.LogLines {
		line := must(stream.Line())(t)
		if want := fmt.Sprintf("line %d", i); string(line) != want {
			t.Errorf("got %q, want %q", line, want)
		}
		if i == 0 {
			first = time.Now()
		}
	}
	if spread := time.Since(first); spread < 200*time.Millisecond {
		t.Errorf("all lines came within %s: they were buffered", spread)
	}
	if _, err := stream.Line(); err != io.EOF {
		t.Errorf("after the last line: %v", err)
	}
}

func testPortForward(t *testing.T, env *testEnv) {
	command := exec.CommandContext(t.Context(), shared.kubectl, "--kubeconfig="+sidecarKubeconfig(t, env.sidecar), "port-forward",
		"-n", env.namespace, "pod", ":8080", "--address=127.0.0.1")
	out := must(command.StdoutPipe())(t)
	command.Stderr = command.Stdout
	check(t, command.Start())
	defer func() { _, _ = command.Process.Kill(), command.Wait() }()
	line := must(bufio.NewReader(out).ReadString('\n'))(t)
	address := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(line)
	if address == "" {
		t.Fatalf("kubectl prints %q", line)
	}
	for i := range 3 {
		connection := must(net.Dial("tcp", address))(t)
		fmt.Fprintf(connection, "hello %d\n", i)
		answer := must(bufio.NewReader(connection).ReadString('\n'))(t)
		if strings.TrimSpace(answer) != fmt.Sprintf("8080: hello %d", i) {
			t.Errorf("got %q", answer)
		}
		check(t, connection.Close())
	}
}
