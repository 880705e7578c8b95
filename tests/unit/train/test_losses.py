"""Distillation is what its equation says."""

import torch
from torch.nn.functional import kl_div, log_softmax

from forerun.train import losses


def random_case():
    torch.manual_seed(0)
    student, teacher = torch.randn(2, 2, 3, 7, dtype=torch.float32).unbind(0)
    return student, teacher, torch.randint(0, 7, (2, 3))


def test_distillation_mixes_cross_entropy_and_forward_kl():
    student, teacher, targets = random_case()
    log_q, log_p = (log_softmax(x.flatten(0, 1), -1) for x in (student, teacher))
    divergence = kl_div(log_q, log_p, log_target=True, reduction="batchmean")
    expected = 0.3 * losses.next_token(student, targets) + 0.7 * divergence
    torch.testing.assert_close(losses.distillation(student, teacher, targets, 0.7), expected)


def test_overlap_is_the_share_of_total_variation_in_what_is_distilled():
    student, teacher, targets = random_case()
    variation = 1 - losses.agreement(student, teacher)[1]
    for overlap in (0.25, 1.0):
        divergence = losses.distillation(student, teacher, targets, 1.0)
        expected = (1 - overlap) * divergence + overlap * variation
        torch.testing.assert_close(losses.distillation(student, teacher, targets, 1.0, overlap), expected)
    mixed = losses.distillation(student, teacher, targets, 0.7, 1.0)
    torch.testing.assert_close(mixed, 0.3 * losses.next_token(student, targets) + 0.7 * torch.tensor(variation))


def test_distillation_from_oneself_has_no_gradient():
    student, _, targets = random_case()
    student.requires_grad_()
    losses.distillation(student, student.detach().clone(), targets, 1.0).backward()
    assert student.grad.abs().max() < 1e-6


def test_agreement_is_one_minus_total_variation():
    student, teacher, _ = random_case()
    same, overlap = losses.agreement(student, teacher)
    p, q = teacher.softmax(-1), student.softmax(-1)
    assert abs(overlap - (1 - 0.5 * (p - q).abs().sum(-1)).mean().item()) < 1e-6
    assert 0 <= same <= 1
    assert losses.agreement(student, student) == (1.0, 1.0) or losses.agreement(student, student)[1] > 1 - 1e-6
