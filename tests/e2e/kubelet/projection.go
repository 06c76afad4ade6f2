package kubelet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"

	"k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// The sources of the chain's projected volume, all optional (contract/src/names.rs).
const (
	// ChainConfigMap contains the document and its signature.
	ChainConfigMap = "ctrlmesh-chain"
	pluginSlots    = 8
)

// PluginConfigMap returns the name of a ConfigMap with plugins; slots are 0 to 7.
func PluginConfigMap(slot int) string { return fmt.Sprintf("ctrlmesh-plugins-%d", slot) }

// Ports of a sidecar (contract/src/names.rs), on each pod's IP.
const (
	AdminPort = "5441"
	APIPort   = "5443"
)

// ipAttempts: an address of 127.0.0.0/8 is seldom taken, but other test runs choose theirs in the same way.
const ipAttempts = 16

// chainFiles reads every source now (kubelet's `configMapAndSecretChangeDetectionStrategy: Get`). Later sources win, as
// in a projected volume.
func chainFiles(ctx context.Context, client kubernetes.Interface, namespace string) (map[string][]byte, error) {
	names := []string{ChainConfigMap}
	for slot := range pluginSlots {
		names = append(names, PluginConfigMap(slot))
	}
	files := map[string][]byte{}
	for _, name := range names {
		source, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, name, meta.GetOptions{})
		if errors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for key, value := range source.Data {
			files[key] = []byte(value)
		}
		for key, value := range source.BinaryData {
			files[key] = value
		}
	}
	return files, nil
}

// freeIP returns a loopback address on which a sidecar can listen.
func freeIP() (string, error) {
	var last error
	for range ipAttempts {
		// 127.0 is left to other programs of the machine.
		ip := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
		if last = isFree(ip); last == nil {
			return ip, nil
		}
	}
	return "", fmt.Errorf("no free address in 127.0.0.0/8 for ports %s: %w", strings.Join([]string{AdminPort, APIPort}, " and "), last)
}

func isFree(ip string) error {
	for _, port := range []string{AdminPort, APIPort} {
		listener, err := net.Listen("tcp", net.JoinHostPort(ip, port))
		if err != nil {
			return err
		}
		if err := listener.Close(); err != nil {
			return err
		}
	}
	return nil
}
