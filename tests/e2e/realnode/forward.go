package realnode

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"ctrlmesh.kusionstack.io/e2e/process"
)

// Forward forwards a port of this machine to the loopback interface of a pod, by `kubectl port-forward`, until the
// returned function is called. Connections end with the pod's containers; a new connection goes to the restarted ones.
func (n *Node) Forward(ctx context.Context, namespace, pod string, port int) (string, func(), error) {
	outputReader, outputWriter, err := os.Pipe()
	if err != nil {
		return "", nil, err
	}
	forward, err := process.Start(process.Spec{
		Name: fmt.Sprintf("forward-%s-%s-%d", namespace, pod, port), Path: n.programs["kubectl"], LogDir: n.Dir, Stdout: outputWriter,
		Args: []string{"--kubeconfig=" + n.Kubeconfig, "port-forward", "-n", namespace, "pod/" + pod, fmt.Sprintf(":%d", port), "--address=127.0.0.1"},
	})
	outputWriter.Close()
	if err != nil {
		outputReader.Close()
		return "", nil, err
	}
	stop := context.AfterFunc(ctx, forward.Kill)
	reader := bufio.NewReader(outputReader)
	line, err := reader.ReadString('\n')
	stop()
	go func() {
		defer outputReader.Close()
		_, _ = io.Copy(io.Discard, reader) // one line for each connection
	}()
	// Forwarding from 127.0.0.1:40000 -> 5443
	words := strings.Fields(line)
	if err != nil || len(words) < 3 {
		forward.Kill()
		return "", nil, fmt.Errorf("kubectl port-forward to %s prints %q: %s", pod, line, forward.LogTail(1024))
	}
	return words[2], forward.Kill, nil
}
