// Command workload is the only program in the images of the node's own tests. It is static, so that the image needs no
// other file.
//
//	pause            reaps orphans until SIGTERM: a pod's first container
//	serve ADDRESS    serves HTTP: /file?path=PATH returns a file, any other path the host name; ends with SIGTERM
//	get URL          prints the body of a response with status 200, and fails otherwise
//	api PATH         the same for a path of the API server, with the mounted credentials of the pod's service account
//	lookup NAME      prints the addresses of a name, in order
//	redirect IP PORT redirects the pod's connections to TCP port 80 of IP to its own port PORT; needs NET_ADMIN
//	sleep            waits for SIGTERM
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// requestTimeout bounds one request.
const requestTimeout = 5 * time.Second

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	commands := map[string]struct {
		arguments int
		run       func(args []string) error
	}{
		"pause": {0, pause}, "sleep": {0, sleep}, "serve": {1, serve}, "get": {1, get}, "api": {1, api}, "lookup": {1, lookup}, "redirect": {2, redirect},
	}
	if len(args) == 0 {
		return errors.New("a command is missing; see the package comment")
	}
	command, ok := commands[args[0]]
	if !ok || len(args[1:]) != command.arguments {
		return fmt.Errorf("no command %q with %d arguments", args[0], len(args[1:]))
	}
	return command.run(args[1:])
}

func pause([]string) error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			break
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
	return nil
}

// sigtermContext returns a context that SIGTERM cancels; the kernel ignores the signal for the first process of a pod
// unless it has a handler.
func sigtermContext() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
}

func sleep([]string) error {
	ctx, cancel := sigtermContext()
	defer cancel()
	<-ctx.Done()
	return nil
}

func serve(args []string) error {
	ctx, cancel := sigtermContext()
	defer cancel()
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, name) })
	mux.HandleFunc("/file", func(w http.ResponseWriter, r *http.Request) {
		text, err := os.ReadFile(r.URL.Query().Get("path"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		_, _ = w.Write(text) // the client may have gone
	})
	server := &http.Server{Addr: args[0], Handler: mux, ReadHeaderTimeout: requestTimeout}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	fmt.Println("serving on", args[0])
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func get(args []string) error {
	return printResponse(&http.Client{Timeout: requestTimeout}, args[0], "")
}

// api finds the API server as client-go does (rest.InClusterConfig).
func api(args []string) error {
	const account = "/var/run/secrets/kubernetes.io/serviceaccount/"
	token, err := os.ReadFile(account + "token")
	if err != nil {
		return err
	}
	authority, err := os.ReadFile(account + "ca.crt")
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	client := &http.Client{Timeout: requestTimeout, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	host := net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	return printResponse(client, "https://"+host+args[0], "Bearer "+string(token))
}

func lookup(args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupHost(ctx, args[0])
	if err != nil {
		return err
	}
	slices.Sort(addresses)
	fmt.Println(strings.Join(addresses, " "))
	return nil
}

func printResponse(client *http.Client, url, authorization string) error {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	if authorization != "" {
		request.Header.Set("Authorization", authorization)
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", response.Status, body)
	}
	fmt.Print(string(body))
	return nil
}
