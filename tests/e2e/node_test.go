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
// bodies. The kubelet at the other end is the node package's.

func streamsToContainers(t *testing.T, v *view) {
	n := must(node.Start(t.Context(), shared.cluster, shared.client, unique("node")))(t)
	defer n.Close()
	check(t, n.Pod(t.Context(), v.namespace, "pod"))
	t.Run("exec_websocket", func(t *testing.T) { execStream(t, v, remotecommand.NewWebSocketExecutor, "") })
	t.Run("exec_spdy", func(t *testing.T) { execStream(t, v, nil, http.MethodPost) })
	t.Run("kubectl_exec", func(t *testing.T) {
		out := kubectl(t, v.sidecar, "", "exec", "-n", v.namespace, "pod", "--", "echo", "hello world")
		if out != "echo hello world\n" {
			t.Errorf("got %q", out)
		}
	})
	t.Run("kubectl_attach", func(t *testing.T) {
		out := kubectl(t, v.sidecar, "one\ntwo\n", "attach", "-q", "-i", "-n", v.namespace, "pod")
		if out != "ONE\nTWO\n" {
			t.Errorf("got %q", out)
		}
	})
	t.Run("logs_follow", func(t *testing.T) { followLog(t, v) })
	t.Run("kubectl_port_forward", func(t *testing.T) { portForward(t, v) })
}

type newExecutor func(config *rest.Config, method, url string) (remotecommand.Executor, error)

// execStream sends more than any buffer holds through the stream and back.
func execStream(t *testing.T, v *view, websocket newExecutor, method string) {
	config := clientConfig(v.sidecar)
	config.Timeout = 0
	client := must(kubernetes.NewForConfig(config))(t)
	request := client.CoreV1().RESTClient().Post().Resource("pods").Namespace(v.namespace).Name("pod").SubResource("exec").
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

// followLog demands each line when it is written, not all at the end.
func followLog(t *testing.T, v *view) {
	path := "/api/v1/namespaces/" + v.namespace + "/pods/pod/log"
	sameBytes(t, v, path)
	stream := must(v.through.Open(t.Context(), get(path+"?follow=true")))(t)
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
		t.Errorf("all lines came within %s: they were held back", spread)
	}
	if _, err := stream.Line(); err != io.EOF {
		t.Errorf("after the last line: %v", err)
	}
}

func portForward(t *testing.T, v *view) {
	command := exec.CommandContext(t.Context(), shared.kubectl, "--kubeconfig="+kubeconfig(t, v.sidecar), "port-forward",
		"-n", v.namespace, "pod", ":8080", "--address=127.0.0.1")
	out := must(command.StdoutPipe())(t)
	command.Stderr = command.Stdout
	check(t, command.Start())
	defer func() { _, _ = command.Process.Kill(), command.Wait() }()
	line := must(bufio.NewReader(out).ReadString('\n'))(t)
	address := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(line)
	if address == "" {
		t.Fatalf("kubectl says %q", line)
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
