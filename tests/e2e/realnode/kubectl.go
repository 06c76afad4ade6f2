package realnode

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// Kubectl runs kubectl as administrator with `input` as standard input, and returns its standard output.
func (n *Node) Kubectl(ctx context.Context, input string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, n.programs["kubectl"], append([]string{"--kubeconfig=" + n.Kubeconfig}, args...)...)
	var output, errs bytes.Buffer
	command.Stdin, command.Stdout, command.Stderr = strings.NewReader(input), &output, &errs
	if err := command.Run(); err != nil {
		return output.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, errs.String())
	}
	return output.String(), nil
}

// PodLog returns a container's log. An empty container name means the pod's first one.
func (n *Node) PodLog(ctx context.Context, namespace, pod, container string) (string, error) {
	return n.Kubectl(ctx, "", append([]string{"logs", "-n", namespace, pod}, containerArgs(container)...)...)
}

// Exec runs a command in a container and returns its standard output.
func (n *Node) Exec(ctx context.Context, namespace, pod, container string, command ...string) (string, error) {
	args := append([]string{"exec", "-n", namespace, pod}, containerArgs(container)...)
	return n.Kubectl(ctx, "", append(append(args, "--"), command...)...)
}

func containerArgs(name string) []string {
	if name == "" {
		return nil
	}
	return []string{"-c", name}
}
