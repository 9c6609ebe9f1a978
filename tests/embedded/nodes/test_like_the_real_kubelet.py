"""The tests of the real kubelet, on a simulated one: imported here, they meet this folder's fixtures.

Left out is what needs a program inside a container (`kubectl exec`) or looks at the machine: hooks, cgroups.
"""

from tests.kubelet.test_checkpoint import test_checkpoint_is_read_and_written_alike
from tests.kubelet.test_claims import (
    new_driver,
    test_a_claim_of_two_pods_is_prepared_once,
    test_a_deadline_ends_a_pod_that_waits_for_its_claims,
    test_a_driver_that_refuses_is_asked_again,
    test_a_pod_that_never_got_its_claims_ends,
    test_a_pod_that_waits_is_told_why,
    test_claims_of_a_pod_are_prepared_at_once_and_taken_back,
    test_claims_outlive_kubelet,
    test_containers_get_the_requests_they_name,
    test_extended_resources_that_a_claim_serves,
    test_reboot_prepares_anew,
    test_slices_of_a_node_go_when_kubelet_starts,
    test_what_kubelet_says_of_claims,
)
from tests.kubelet.test_device_lists import test_longest_list
from tests.kubelet.test_identity import (
    test_allocate_is_too_early_to_know_the_pod,
    test_container_does_not_start_while_pre_start_fails,
    test_devices_may_change_between_pods,
    test_forty_equal_pods_at_once,
    test_pod_admitted_before_the_plugin_is_known_runs_without_devices,
    test_two_equal_containers_of_one_pod,
)
from tests.kubelet.test_init_containers import (
    test_init_containers_and_a_sidecar,
    test_pod_whose_only_device_is_in_an_init_container,
)
from tests.kubelet.test_node import test_pod_runs_to_its_end_and_kubectl_reads_its_log
from tests.kubelet.test_node_units import test_units_in_node_status
from tests.kubelet.test_restarts import test_kubelet_restart, test_reboot
from tests.kubelet.test_statuses import (
    test_a_deleted_pod_that_does_not_listen_is_killed_after_its_grace,
    test_logs_of_runs,
    test_logs_that_are_not_there,
    test_status_and_events,
)

__all__ = [
    "new_driver",
    "test_a_claim_of_two_pods_is_prepared_once",
    "test_a_deadline_ends_a_pod_that_waits_for_its_claims",
    "test_a_deleted_pod_that_does_not_listen_is_killed_after_its_grace",
    "test_a_driver_that_refuses_is_asked_again",
    "test_a_pod_that_never_got_its_claims_ends",
    "test_a_pod_that_waits_is_told_why",
    "test_allocate_is_too_early_to_know_the_pod",
    "test_checkpoint_is_read_and_written_alike",
    "test_claims_of_a_pod_are_prepared_at_once_and_taken_back",
    "test_claims_outlive_kubelet",
    "test_container_does_not_start_while_pre_start_fails",
    "test_containers_get_the_requests_they_name",
    "test_devices_may_change_between_pods",
    "test_extended_resources_that_a_claim_serves",
    "test_forty_equal_pods_at_once",
    "test_init_containers_and_a_sidecar",
    "test_kubelet_restart",
    "test_logs_of_runs",
    "test_logs_that_are_not_there",
    "test_longest_list",
    "test_pod_admitted_before_the_plugin_is_known_runs_without_devices",
    "test_pod_runs_to_its_end_and_kubectl_reads_its_log",
    "test_pod_whose_only_device_is_in_an_init_container",
    "test_reboot",
    "test_reboot_prepares_anew",
    "test_slices_of_a_node_go_when_kubelet_starts",
    "test_status_and_events",
    "test_two_equal_containers_of_one_pod",
    "test_units_in_node_status",
    "test_what_kubelet_says_of_claims",
]
