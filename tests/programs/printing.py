# what tensors look like
import torch

torch.manual_seed(0)
print(torch.rand(3), torch.randn(2, 3))
print(torch.randn(3, 4) * 100)
print(torch.arange(5), torch.ones(2, 2, dtype=torch.float64), torch.tensor([True, False]))
print(torch.tensor([1e-8, 1.0]), torch.tensor(float("nan")), torch.tensor([float("inf"), 1]))
print(torch.zeros(0), torch.tensor([[1.5, 2.0]], requires_grad=True).t())
print((torch.tensor([1, 2]) * 2.5).dtype, (torch.tensor([1, 2]) / 2).dtype, torch.tensor(3) ** 2)
