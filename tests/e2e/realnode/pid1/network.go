package main

import (
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
)

// uplink substitutes for a machine's network interface; its other end is not connected.
const uplink, nowhere = "uplink", "nowhere"

// setUpNetwork gives the node an address, and a route to Services: a packet to a Service needs a route before its
// destination is translated. The loopback interface can't be used, because the kernel does not reject packets there
// (icmp_send would have to answer from the Service's address, which no interface has). There is no route out to the
// machine.
func (n *nodeSetup) setUpNetwork() error {
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	link := netlink.NewLinkAttrs()
	link.Name = uplink
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: link, PeerName: nowhere}); err != nil {
		return fmt.Errorf("add a pair of interfaces: %w", err)
	}
	near, err := netlink.LinkByName(uplink)
	if err != nil {
		return err
	}
	far, err := netlink.LinkByName(nowhere)
	if err != nil {
		return err
	}
	for _, link := range []netlink.Link{loopback, near, far} {
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("bring %s up: %w", link.Attrs().Name, err)
		}
	}
	address, err := netlink.ParseAddr(n.address)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(near, address); err != nil {
		return fmt.Errorf("add %s: %w", n.address, err)
	}
	services, err := netlink.ParseIPNet(n.services)
	if err != nil {
		return err
	}
	route := &netlink.Route{LinkIndex: near.Attrs().Index, Dst: services, Src: address.IP, Scope: netlink.SCOPE_LINK}
	if err := netlink.RouteAdd(route); err != nil {
		return fmt.Errorf("add a route to %s: %w", n.services, err)
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644)
}
