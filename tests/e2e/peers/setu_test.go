// The waits for Setu in a copy of Kueue's specs. This file is put beside them.
package peers

import (
	"fmt"
	"strconv"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	autoscaling "k8s.io/autoscaler/cluster-autoscaler/apis/provisioningrequest/autoscaling.x-k8s.io/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/util/admissioncheck"
	"sigs.k8s.io/kueue/test/util"
)

// setWeather sets how the cloud behind Karpenter behaves from now on.
func setWeather(rules string) {
	ginkgo.GinkgoHelper()
	weather := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "weather"},
		Data:       map[string]string{"peers": "rules: " + rules},
	}
	gomega.Expect(k8sClient.Update(ctx, weather)).To(gomega.Succeed())
}

// awaitSetu waits until Setu has given a request this condition. Nodes come up only while a spec waits for them. It watches,
// because Kueue soon deletes a failed request.
func awaitSetu(key types.NamespacedName, request *autoscaling.ProvisioningRequest, condition string, status metav1.ConditionStatus) {
	ginkgo.GinkgoHelper()
	if condition == autoscaling.Provisioned && status == metav1.ConditionTrue {
		setWeather("[]")
	}
	one := client.MatchingFields{"metadata.name": key.Name}
	watcher, err := k8sClient.(client.WithWatch).Watch(ctx, &autoscaling.ProvisioningRequestList{}, client.InNamespace(key.Namespace), one)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	defer watcher.Stop()
	gomega.Eventually(watcher.ResultChan(), util.Timeout).Should(gomega.Receive(gomega.Satisfy(func(event watch.Event) bool {
		event.Object.(*autoscaling.ProvisioningRequest).DeepCopyInto(request)
		return apimeta.IsStatusConditionPresentAndEqual(request.Status.Conditions, condition, status)
	})), "%s is not %s", condition, status)
}

// expectMessageOfSetu waits until Kueue shows at its check how many nodes of a request are ready, in Setu's words.
func expectMessageOfSetu(workloadKey, requestKey types.NamespacedName, check string) {
	ginkgo.GinkgoHelper()
	gomega.Eventually(func(g gomega.Gomega) {
		var request autoscaling.ProvisioningRequest
		g.Expect(k8sClient.Get(ctx, requestKey, &request)).To(gomega.Succeed())
		said := apimeta.FindStatusCondition(request.Status.Conditions, autoscaling.Provisioned)
		g.Expect(said.Message).To(gomega.ContainSubstring("nodes ready"))
		var workload kueue.Workload
		g.Expect(k8sClient.Get(ctx, workloadKey, &workload)).To(gomega.Succeed())
		shown := admissioncheck.FindAdmissionCheck(workload.Status.AdmissionChecks, kueue.AdmissionCheckReference(check))
		g.Expect(shown.State).To(gomega.Equal(kueue.CheckStatePending))
		g.Expect(shown.Message).To(gomega.Equal(said.Message))
	}, util.Timeout, util.Interval).Should(gomega.Succeed())
}

// nodesOfSetu returns the Nodes that Setu made for a request.
func nodesOfSetu(request *autoscaling.ProvisioningRequest) []corev1.Node {
	var nodes corev1.NodeList
	gang := client.MatchingLabels{"setu.kueue.x-k8s.io/gang": string(request.Status.ProvisioningClassDetails["gang"])}
	gomega.Expect(k8sClient.List(ctx, &nodes, gang)).To(gomega.Succeed())
	return nodes.Items
}

// nodeOfSetu returns the name of the only Node that Setu made for a request.
func nodeOfSetu(request *autoscaling.ProvisioningRequest) string {
	nodes := nodesOfSetu(request)
	gomega.Expect(nodes).To(gomega.HaveLen(1))
	return nodes[0].Name
}

// expectNodesOfSetuToStay checks for a while that all Nodes of a request are there. Whether it still exists does not matter.
func expectNodesOfSetuToStay(request *autoscaling.ProvisioningRequest) {
	ginkgo.GinkgoHelper()
	count, err := strconv.Atoi(string(request.Status.ProvisioningClassDetails["count"]))
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	gomega.Consistently(func(g gomega.Gomega) {
		g.Expect(nodesOfSetu(request)).To(gomega.HaveLen(count))
	}, 5*time.Second, util.Interval).Should(gomega.Succeed())
}

// withReasonOfSetu returns the text of an Event about a check, followed by why Setu failed a request.
func withReasonOfSetu(format, check string, request *autoscaling.ProvisioningRequest) string {
	failed := apimeta.FindStatusCondition(request.Status.Conditions, autoscaling.Failed)
	return fmt.Sprintf(format+" (%s)", check, failed.Message)
}
