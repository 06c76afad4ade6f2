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

// servicePort is one port of a Service with its backends.
type servicePort struct {
	address  netip.AddrPort
	protocol core.Protocol
	backends []netip.AddrPort
}

// serviceProxy translates the addresses of Services as the API server lists them, in place of kube-proxy, which needs
// nft or iptables on the machine.
type serviceProxy struct {
	serviceStore, sliceStore cache.Store
	changed                  chan struct{}
	rules                    *nftRules
	log                      *os.File
}

// retryDelay is the pause after the rules could not be set.
const retryDelay = 200 * time.Millisecond

func (n *Node) startServices() error {
	rules, err := newRules(int(n.network.namespace.Fd()))
	if err != nil {
		return err
	}
	if err := rules.replaceAll(nil); err != nil {
		return fmt.Errorf("the kernel needs nf_tables: %w", err)
	}
	log, err := os.Create(n.path("services.log"))
	if err != nil {
		return err
	}
	n.cleanups = append(n.cleanups, func() { log.Close() })
	ctx, cancel := context.WithCancel(context.Background())
	s := &serviceProxy{changed: make(chan struct{}, 1), rules: rules, log: log}
	var running sync.WaitGroup
	s.serviceStore = s.follow(ctx, &running, n.Client.CoreV1().RESTClient(), "services", &core.Service{})
	s.sliceStore = s.follow(ctx, &running, n.Client.DiscoveryV1().RESTClient(), "endpointslices", &discovery.EndpointSlice{})
	running.Go(func() { s.run(ctx) })
	n.cleanups = append(n.cleanups, func() {
		cancel()
		running.Wait()
	})
	return n.startDNS(s)
}

func (s *serviceProxy) follow(ctx context.Context, running *sync.WaitGroup, client rest.Interface, resource string, object runtime.Object) cache.Store {
	notify := func(any) {
		select {
		case s.changed <- struct{}{}:
		default: // a change is already pending
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

func (s *serviceProxy) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
		}
		for {
			err := s.rules.replaceAll(servicePorts(s.serviceStore.List(), s.sliceStore.List()))
			if err == nil {
				break
			}
			fmt.Fprintln(s.log, time.Now().Format(time.RFC3339Nano), err)
			select {
			case <-ctx.Done():
				return
			case <-time.After(retryDelay):
			}
		}
	}
}

// servicePorts returns the ports of all Services that have an address, including those without backends, which have to
// be rejected.
func servicePorts(allServices, allSlices []any) []servicePort {
	var found []servicePort
	for _, object := range allServices {
		service := object.(*core.Service)
		address, err := netip.ParseAddr(service.Spec.ClusterIP)
		if err != nil {
			continue // headless, or an ExternalName
		}
		for _, port := range service.Spec.Ports {
			found = append(found, servicePort{
				address:  netip.AddrPortFrom(address, uint16(port.Port)),
				protocol: port.Protocol,
				backends: backends(service, port.Name, allSlices),
			})
		}
	}
	slices.SortFunc(found, func(a, b servicePort) int {
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
