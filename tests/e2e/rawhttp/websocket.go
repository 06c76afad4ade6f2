package rawhttp

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
)

// WebSocket is the receiving half of a WebSocket (RFC 6455), without extensions: enough for a watch.
type WebSocket struct {
	reader     *bufio.Reader
	connection net.Conn
}

// maxMessage bounds a message: an object of etcd's default size limit fits in base64.
const maxMessage = 4 << 20

// Upgrade requests a WebSocket. If the server responds otherwise, the response is returned instead of a socket.
func (t Target) Upgrade(ctx context.Context, request Request) (*WebSocket, *Response, error) {
	request.Headers = append(slices.Clone(request.Headers), "Connection: Upgrade", "Upgrade: websocket",
		"Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: "+base64.StdEncoding.EncodeToString([]byte("0123456789abcdef")))
	connection, err := t.Dial(ctx)
	if err != nil {
		return nil, nil, err
	}
	if _, err := connection.Write(t.withAuthorization(request).Bytes()); err != nil {
		connection.Close()
		return nil, nil, err
	}
	reader := bufio.NewReader(connection)
	response, err := Read(reader, request.Method)
	if err != nil || response.Status != http.StatusSwitchingProtocols {
		connection.Close()
		return nil, response, err
	}
	return &WebSocket{reader, connection}, response, nil
}

// Message reads the next text or binary message; the end of the socket is io.EOF.
func (w *WebSocket) Message() ([]byte, error) {
	var message []byte
	for {
		var head [2]byte
		if _, err := io.ReadFull(w.reader, head[:]); err != nil {
			return nil, err
		}
		length, err := w.readLength(head[1] & 0x7f)
		if err != nil {
			return nil, err
		}
		if length > maxMessage {
			return nil, fmt.Errorf("a frame of %d bytes", length)
		}
		payload := make([]byte, length)
		if _, err := io.ReadFull(w.reader, payload); err != nil {
			return nil, err
		}
		switch opcode := head[0] & 0x0f; opcode {
		case 0, 1, 2: // continuation, text, binary
			message = append(message, payload...)
			if head[0]&0x80 != 0 {
				return message, nil
			}
		case 8: // close
			return nil, io.EOF
		case 9, 10: // ping, pong: tests do not need to answer
		default:
			return nil, fmt.Errorf("a frame with opcode %d", opcode)
		}
	}
}

func (w *WebSocket) readLength(short byte) (uint64, error) {
	switch short {
	case 126:
		var long [2]byte
		_, err := io.ReadFull(w.reader, long[:])
		return uint64(binary.BigEndian.Uint16(long[:])), err
	case 127:
		var long [8]byte
		_, err := io.ReadFull(w.reader, long[:])
		return binary.BigEndian.Uint64(long[:]), err
	default:
		return uint64(short), nil
	}
}

// Close closes the connection.
func (w *WebSocket) Close() { w.connection.Close() }
