from .configuration import AwdLstmConfig as AwdLstmConfig
from .model import AwdLstmForCausalLM as AwdLstmForCausalLM
from .trainer import AwdLstmTrainer as AwdLstmTrainer
from .trainer import AwdLstmTrainingArguments as AwdLstmTrainingArguments
