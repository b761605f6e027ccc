// The controller that csi-sanity makes volumes with, and that `forebay csi` has not: it says of every name that there is
// such a volume, with the attributes of its command line. Whatever else it is asked, it asks the driver.
//
//	controller SOCKET DRIVER_SOCKET [ATTRIBUTE=VALUE ...]
package main

import (
	"context"
	"log"
	"net"
	"os"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
)

// A message that is passed on as it came.
type message []byte

type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(value any) ([]byte, error) {
	if passed, ok := value.(*message); ok {
		return *passed, nil
	}
	return proto.Marshal(protoadapt.MessageV2Of(value.(protoadapt.MessageV1)))
}

func (codec) Unmarshal(data []byte, value any) error {
	if passed, ok := value.(*message); ok {
		*passed = append(message{}, data...)
		return nil
	}
	return proto.Unmarshal(data, protoadapt.MessageV2Of(value.(protoadapt.MessageV1)))
}

// passTo asks the driver what this is not, and says what it says. Of what the driver can, it says that volumes can be made,
// too.
func passTo(driver *grpc.ClientConn) grpc.StreamHandler {
	return func(_ any, stream grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(stream)
		var asked, answer message
		if err := stream.RecvMsg(&asked); err != nil {
			return err
		}
		if err := driver.Invoke(stream.Context(), method, &asked, &answer); err != nil {
			return err
		}
		if method == "/csi.v1.Identity/GetPluginCapabilities" {
			return stream.SendMsg(withController())
		}
		return stream.SendMsg(&answer)
	}
}

func withController() *csi.GetPluginCapabilitiesResponse {
	service := &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}
	capability := &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: service}}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{capability}}
}

type controller struct {
	csi.UnimplementedControllerServer
	attributes map[string]string
}

func (controller) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	rpc := &csi.ControllerServiceCapability_RPC{Type: csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME}
	capability := &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{Rpc: rpc}}
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: []*csi.ControllerServiceCapability{capability}}, nil
}

func (c controller) CreateVolume(_ context.Context, asked *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if asked.GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "name is missing")
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: asked.GetName(), VolumeContext: c.attributes}}, nil
}

func (controller) DeleteVolume(context.Context, *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	return &csi.DeleteVolumeResponse{}, nil
}

func main() {
	if len(os.Args) < 3 {
		log.Fatal("usage: controller SOCKET DRIVER_SOCKET [ATTRIBUTE=VALUE ...]")
	}
	attributes := map[string]string{}
	for _, argument := range os.Args[3:] {
		name, value, _ := strings.Cut(argument, "=")
		attributes[name] = value
	}
	driver, err := grpc.NewClient("unix://"+os.Args[2], grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"), grpc.WithDefaultCallOptions(grpc.ForceCodec(codec{})))
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("unix", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.ForceServerCodec(codec{}), grpc.UnknownServiceHandler(passTo(driver)))
	csi.RegisterControllerServer(server, &controller{attributes: attributes})
	log.Fatal(server.Serve(listener))
}
