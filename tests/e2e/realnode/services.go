package realnode

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// frontend is one port of a Service, and where connections to it go.
type frontend struct {
	address  netip.AddrPort
	protocol core.Protocol
	backends []netip.AddrPort
}

// services keeps the node's translation of Services as the API server has them, in place of kube-proxy, which needs
// programs of the machine (nft or iptables) for that.
type services struct {
	services, slices cache.Store
	changed          chan struct{}
	rules            *rules
	log              *os.File
}

// retryAfter is the pause after a failed translation.
const retryAfter = 200 * time.Millisecond

func (n *Node) startServices() error {
	rules, err := newRules(int(n.network.namespace.Fd()))
	if err != nil {
		return err
	}
	if err := rules.replace(nil); err != nil {
		return fmt.Errorf("the kernel needs nf_tables: %w", err)
	}
	log, err := os.Create(n.file("services.log"))
	if err != nil {
		return err
	}
	n.end = append(n.end, func() { log.Close() })
	ctx, cancel := context.WithCancel(context.Background())
	s := &services{changed: make(chan struct{}, 1), rules: rules, log: log}
	var running sync.WaitGroup
	s.services = s.follow(ctx, &running, n.Client.CoreV1().RESTClient(), "services", &core.Service{})
	s.slices = s.follow(ctx, &running, n.Client.DiscoveryV1().RESTClient(), "endpointslices", &discovery.EndpointSlice{})
	running.Go(func() { s.run(ctx) })
	n.end = append(n.end, func() {
		cancel()
		running.Wait()
	})
	return n.startDNS(s)
}

func (s *services) follow(ctx context.Context, running *sync.WaitGroup, client rest.Interface, resource string, object runtime.Object) cache.Store {
	notify := func(any) {
		select {
		case s.changed <- struct{}{}:
		default: // it is noted already
		}
	}
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(client, resource, core.NamespaceAll, fields.Everything()),
		ObjectType:    object,
		Handler:       cache.ResourceEventHandlerFuncs{AddFunc: notify, UpdateFunc: func(_, now any) { notify(now) }, DeleteFunc: notify},
	})
	running.Go(func() { controller.RunWithContext(ctx) })
	return store
}

func (s *services) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
		}
		for {
			err := s.rules.replace(frontends(s.services.List(), s.slices.List()))
			if err == nil {
				break
			}
			fmt.Fprintln(s.log, time.Now().Format(time.RFC3339Nano), err)
			select {
			case <-ctx.Done():
				return
			case <-time.After(retryAfter):
			}
		}
	}
}

// frontends are the ports of all Services that have an address. One without backends is among them: it has to be refused.
func frontends(allServices, allSlices []any) []frontend {
	var found []frontend
	for _, object := range allServices {
		service := object.(*core.Service)
		address, err := netip.ParseAddr(service.Spec.ClusterIP)
		if err != nil {
			continue // headless, or a name
		}
		for _, port := range service.Spec.Ports {
			found = append(found, frontend{
				address:  netip.AddrPortFrom(address, uint16(port.Port)),
				protocol: port.Protocol,
				backends: backends(service, port.Name, allSlices),
			})
		}
	}
	slices.SortFunc(found, func(a, b frontend) int {
		return cmp.Or(a.address.Compare(b.address), cmp.Compare(a.protocol, b.protocol))
	})
	return found
}

func backends(service *core.Service, port string, allSlices []any) []netip.AddrPort {
	var found []netip.AddrPort
	for _, slice := range slicesOf(service, allSlices) {
		for _, endpoint := range slice.Endpoints {
			if isReady(endpoint) {
				found = append(found, addresses(endpoint, slice.Ports, port)...)
			}
		}
	}
	slices.SortFunc(found, netip.AddrPort.Compare)
	return slices.Compact(found)
}

func addresses(endpoint discovery.Endpoint, ports []discovery.EndpointPort, name string) []netip.AddrPort {
	var found []netip.AddrPort
	for _, port := range ports {
		if port.Port == nil || port.Name == nil || *port.Name != name {
			continue
		}
		for _, text := range endpoint.Addresses {
			if address, err := netip.ParseAddr(text); err == nil {
				found = append(found, netip.AddrPortFrom(address, uint16(*port.Port)))
			}
		}
	}
	return found
}
