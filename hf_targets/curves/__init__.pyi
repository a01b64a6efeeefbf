from .configuration import CurveConfig as CurveConfig
from .sentence_curve import SentenceCurve as SentenceCurve
