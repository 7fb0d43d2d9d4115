"""A student that is taught by a trained teacher, with accumulation over micro-batches."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def make_model(width):
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))


def batches(n):
    for _ in range(n):
        x = torch.randn(16, 8)
        yield x, x[:, :4].argmax(dim=1)


def train_teacher(teacher):
    optimizer = torch.optim.Adam(teacher.parameters(), lr=5e-3)
    for x, y in batches(6):
        logits = teacher(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def distill(teacher, student, accumulate=2, temperature=2.0):
    teacher.eval()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
    optimizer.zero_grad()
    for step, (x, y) in enumerate(batches(12)):
        with torch.no_grad():
            teacher_logits = teacher(x)
        student_logits = student(x)
        soft = F.kl_div(
            F.log_softmax(student_logits / temperature, dim=1),
            F.softmax(teacher_logits / temperature, dim=1),
            reduction="batchmean",
        )
        hard = F.cross_entropy(student_logits, y)
        loss = (0.7 * soft + 0.3 * hard) / accumulate
        loss.backward()
        if (step + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    return loss.item()


torch.manual_seed(0)
teacher, student = make_model(24), make_model(8)
train_teacher(teacher)
print(distill(teacher, student))
