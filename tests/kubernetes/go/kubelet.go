//go:build kubelet
// +build kubelet

package main

import (
	"github.com/spf13/cobra"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func init() {
	components["kubelet"] = func() *cobra.Command { return kubelet.NewKubeletCommand() }
}
