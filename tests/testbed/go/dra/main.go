// Answers as Kubernetes' own scheduler does about claims of devices, one JSON document a line in, one a line out:
// what a selector says of a device, and what the stock allocator gives claims on a node.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

type question struct {
	// A selector and a device.
	Expression string              `json:"expression"`
	Driver     string              `json:"driver"`
	Device     *resourceapi.Device `json:"device"`
	// Claims to allocate on a node.
	Node      string                       `json:"node"`
	Claims    []*resourceapi.ResourceClaim `json:"claims"`
	Slices    []*resourceapi.ResourceSlice `json:"slices"`
	Classes   []*resourceapi.DeviceClass   `json:"classes"`
	Allocated []*resourceapi.ResourceClaim `json:"allocated"`
}

type answer struct {
	Result      *bool                          `json:"result,omitempty"`
	Allocations []resourceapi.AllocationResult `json:"allocations,omitempty"`
	Error       string                         `json:"error,omitempty"`
}

var features = structured.Features{
	AdminAccess: true, ConsumableCapacity: true, DeviceTaints: true, PartitionableDevices: true, PrioritizedList: true,
}

type classes map[string]*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error) {
	all := make([]*resourceapi.DeviceClass, 0, len(c))
	for _, class := range c {
		all = append(all, class)
	}
	return all, nil
}

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	if class, ok := c[name]; ok {
		return class, nil
	}
	return nil, fmt.Errorf("device class %s not found", name)
}

func matches(asked question) answer {
	compiled := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true}).CompileCELExpression(asked.Expression, cel.Options{})
	if compiled.Error != nil {
		return answer{Error: compiled.Error.Error()}
	}
	result, _, err := compiled.DeviceMatches(context.Background(), cel.Device{
		Driver: asked.Driver, AllowMultipleAllocations: asked.Device.AllowMultipleAllocations,
		Attributes: asked.Device.Attributes, Capacity: asked.Device.Capacity,
	})
	if err != nil {
		return answer{Error: err.Error()}
	}
	return answer{Result: &result}
}

func state(allocated []*resourceapi.ResourceClaim) structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range allocated {
		for _, result := range claim.Status.Allocation.Devices.Results {
			if result.AdminAccess != nil && *result.AdminAccess {
				continue
			}
			id := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
			if result.ShareID == nil {
				state.AllocatedDevices.Insert(id)
				continue
			}
			state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, result.ShareID))
			state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity))
		}
	}
	return state
}

func allocate(asked question) answer {
	ctx := context.Background()
	known := classes{}
	for _, class := range asked.Classes {
		known[class.Name] = class
	}
	cache := cel.NewCache(100, cel.Features{EnableConsumableCapacity: true})
	allocator, err := structured.NewAllocator(ctx, features, state(asked.Allocated), known, asked.Slices, cache)
	if err != nil {
		return answer{Error: err.Error()}
	}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: asked.Node}}
	results, err := allocator.Allocate(ctx, node, asked.Claims)
	if err != nil {
		return answer{Error: err.Error()}
	}
	return answer{Allocations: results}
}

func main() {
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var asked question
		reply := answer{}
		if err := json.Unmarshal(line, &asked); err != nil {
			reply.Error = "cannot be read: " + err.Error()
		} else if asked.Device != nil {
			reply = matches(asked)
		} else {
			reply = allocate(asked)
		}
		if err := out.Encode(reply); err != nil {
			return
		}
	}
}
